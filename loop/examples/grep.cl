/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * grep: a client sends "pattern path"; each line of the file that has the pattern comes back as
 * "number:line", then "." and the number of these lines. "!" instead: the file can't be opened, or a lane has too
 * many clients. The pattern is plain text without a space. A line of more than a block is several.
 *
 * The file is read in blocks, from a line's begin each. A block is kept and searched in steps of STEP_BYTES, so
 * that the lane can be taken from the GPU in between.
 */
#define JOBS 16u /* clients of one lane that search */
#define STEP_BYTES 512u
#define PATTERN_BYTES 64u

struct job {
	uint used, client, file, pattern_bytes;
	ulong offset, line, found; /* of the block; of its first line not searched yet; lines until now */
	uint closes; /* the client sends no more */
	uint searched, whole; /* whole: of the block's bytes, those of lines that have an end in it */
	uint pad;
	uchar pattern[PATTERN_BYTES];
	uchar block[LOOP_DATA_BYTES];
};

LOOP_FUNCTION uint put_number(LOOP_GLOBAL uchar *out, ulong n)
{
	uint digits = 1;
	for (ulong left = n; left >= 10; left /= 10)
		++digits;
	if (loop_item() == 0)
		for (uint i = digits; i-- > 0; n /= 10)
			out[i] = (uchar)('0' + n % 10);
	return digits;
}

LOOP_FUNCTION LOOP_GLOBAL struct job *jobs_of(struct loop *l) { return (LOOP_GLOBAL struct job *)loop_state(l); }

LOOP_FUNCTION uint job_of(struct loop *l, uint client)
{
	for (uint j = 0; j < JOBS; ++j)
		if (jobs_of(l)[j].used && jobs_of(l)[j].client == client)
			return j;
	return JOBS;
}

LOOP_FUNCTION void refuse(struct loop *l, uint client)
{
	if (loop_item() == 0) {
		loop_out(l)[0] = '!';
		loop_out(l)[1] = '\n';
	}
	loop_send(l, client, 2);
}

LOOP_FUNCTION void begin(struct loop *l, const struct loop_event *e)
{
	LOOP_GLOBAL struct job *jobs = jobs_of(l);
	LOOP_GLOBAL const uchar *text = loop_data(l);
	uint j = 0, pattern = 0;
	while (j < JOBS && jobs[j].used)
		++j;
	while (pattern < e->bytes && text[pattern] != ' ')
		++pattern;
	if (j == JOBS || job_of(l, e->source) < JOBS || !pattern || pattern > PATTERN_BYTES || pattern + 1 >= e->bytes) {
		refuse(l, e->source);
		return;
	}
	const uint path_bytes = e->bytes - pattern - 1;
	for (uint i = loop_item(); i < path_bytes; i += loop_items())
		loop_out(l)[i] = text[pattern + 1 + i];
	loop_copy(l, jobs[j].pattern, text, pattern);
	loop_store(l, &jobs[j].used, 1, 4);
	loop_store(l, &jobs[j].client, e->source, 4);
	loop_store(l, &jobs[j].file, LOOP_NONE, 4);
	loop_store(l, &jobs[j].pattern_bytes, pattern, 4);
	loop_store(l, &jobs[j].offset, 0, 8);
	loop_store(l, &jobs[j].found, 0, 8);
	loop_store(l, &jobs[j].line, 1, 8);
	loop_store(l, &jobs[j].closes, 0, 4);
	loop_open(l, path_bytes, j);
}

LOOP_FUNCTION void end(struct loop *l, uint j)
{
	LOOP_GLOBAL struct job *job = jobs_of(l) + j;
	const uint digits = put_number(loop_out(l) + 1, job->found);
	const uint client = job->client, file = job->file, closes = job->closes;
	if (loop_item() == 0) {
		loop_out(l)[0] = '.';
		loop_out(l)[1 + digits] = '\n';
	}
	loop_send(l, client, digits + 2);
	loop_forget(l, file);
	if (closes)
		loop_close(l, client);
	loop_store(l, &job->used, 0, 4);
}

LOOP_FUNCTION void take_block(struct loop *l, const struct loop_event *e)
{
	const uint j = (uint)e->cookie;
	LOOP_GLOBAL struct job *job = jobs_of(l) + j;
	LOOP_GLOBAL const uchar *text = loop_data(l);
	if (e->source == LOOP_NONE || e->bytes == 0) {
		end(l, j);
		return;
	}
	uint whole = e->bytes;
	if (e->bytes == LOOP_DATA_BYTES) { /* not the file's end: the last line goes on */
		while (whole && text[whole - 1] != '\n')
			--whole;
		if (!whole)
			whole = e->bytes;
	}
	loop_copy(l, job->block, text, e->bytes);
	loop_store(l, &job->whole, whole, 4);
	loop_store(l, &job->searched, 0, 4);
	loop_later(l, j);
}

LOOP_FUNCTION bool has(LOOP_GLOBAL const struct job *job, uint from, uint to)
{
	for (uint at = from; at + job->pattern_bytes <= to; ++at) {
		uint same = 0;
		while (same < job->pattern_bytes && job->block[at + same] == job->pattern[same])
			++same;
		if (same == job->pattern_bytes)
			return true;
	}
	return false;
}

/* Lines until one is found or STEP_BYTES are searched. Everybody searches alike: lines are short. */
LOOP_FUNCTION void step(struct loop *l, uint j)
{
	LOOP_GLOBAL struct job *job = jobs_of(l) + j;
	uint at = job->searched, stop = at;
	const uint whole = job->whole, limit = at + STEP_BYTES;
	ulong line = job->line;
	bool found = false;
	while (at < whole && at < limit && !found) {
		stop = at;
		while (stop < whole && job->block[stop] != '\n')
			++stop;
		found = has(job, at, stop);
		if (!found) {
			at = loop_least(stop + 1, whole);
			++line;
		}
	}
	uint bytes = 0;
	const uint client = job->client;
	if (found) {
		bytes = put_number(loop_out(l), line);
		/* A line is cut where it would not fit with its number. */
		const uint kept = loop_least(stop - at, LOOP_DATA_BYTES - bytes - 2);
		for (uint i = loop_item(); i < kept; i += loop_items())
			loop_out(l)[bytes + 1 + i] = job->block[at + i];
		if (loop_item() == 0) {
			loop_out(l)[bytes] = ':';
			loop_out(l)[bytes + 1 + kept] = '\n';
		}
		bytes += kept + 2;
		at = loop_least(stop + 1, whole);
		++line;
	}
	const ulong offset = job->offset + whole;
	loop_store(l, &job->searched, at, 4);
	loop_store(l, &job->line, line, 8);
	loop_store(l, &job->found, job->found + found, 8);
	if (at == whole)
		loop_store(l, &job->offset, offset, 8);
	if (found)
		loop_send(l, client, bytes);
	if (at < whole)
		loop_later(l, j);
	else
		loop_send_notify(l, client, 0, j); /* who does not read holds up its own search only */
}

LOOP_FUNCTION void go_on(struct loop *l, const struct loop_event *e)
{
	const uint j = (uint)e->cookie;
	LOOP_GLOBAL struct job *job = jobs_of(l) + j;
	if (e->value) { /* the client is gone */
		loop_forget(l, job->file);
		loop_store(l, &job->used, 0, 4);
	} else {
		loop_read(l, job->file, job->offset, LOOP_DATA_BYTES, j);
	}
}

LOOP_FUNCTION void opened(struct loop *l, const struct loop_event *e)
{
	const uint j = (uint)e->cookie;
	LOOP_GLOBAL struct job *job = jobs_of(l) + j;
	if (e->source == LOOP_NONE) {
		refuse(l, job->client);
		if (job->closes)
			loop_close(l, job->client);
		loop_store(l, &job->used, 0, 4);
		return;
	}
	loop_store(l, &job->file, e->source, 4);
	loop_read(l, e->source, 0, LOOP_DATA_BYTES, j);
}

LOOP_FUNCTION void closed(struct loop *l, uint client)
{
	const uint j = job_of(l, client);
	if (j == JOBS)
		loop_close(l, client);
	else
		loop_store(l, &jobs_of(l)[j].closes, 1, 4);
}

LOOP_PROGRAM void loop_arrived(struct loop *l, const struct loop_event *e)
{
	switch (e->kind) {
	case LOOP_CLOSED: closed(l, e->source); break;
	case LOOP_RECEIVED: begin(l, e); break;
	case LOOP_OPENED: opened(l, e); break;
	case LOOP_READ: take_block(l, e); break;
	case LOOP_STEP: step(l, (uint)e->cookie); break;
	case LOOP_SENT: go_on(l, e); break;
	}
}
