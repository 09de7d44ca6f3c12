/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kv: a key-value store in GPU memory. Each lane has a part of the keys; a request for another's goes there
 * by loop_post(). Lines of a client, one answer each:
 *
 *     SET key value   OK, or FULL          GET key   =value, or NONE
 *     ADD key         =the number + 1      DEL key   OK, or NONE
 *
 * A key has at most 40 bytes, a value 80. What is no request is answered BAD.
 */
#define KEY_BYTES 40u
#define VALUE_BYTES 80u
#define NO_ENTRY 0xffffffffu

struct entry {
	uchar key_bytes, value_bytes; /* key_bytes 0: free; 255: was deleted */
	uchar pad[6];
	uchar key[KEY_BYTES], value[VALUE_BYTES];
};

#define DELETED 255u
/* KV_ENTRIES is what the host gives the lane room for. */

LOOP_FUNCTION uint hash_of(LOOP_GLOBAL const uchar *text, uint bytes)
{
	uint h = 2166136261u;
	for (uint i = 0; i < bytes; ++i)
		h = (h ^ text[i]) * 16777619u;
	return h ^ h >> 15;
}

LOOP_FUNCTION bool is_key(LOOP_GLOBAL const struct entry *one, LOOP_GLOBAL const uchar *key, uint bytes)
{
	if (one->key_bytes != bytes)
		return false;
	for (uint i = 0; i < bytes; ++i)
		if (one->key[i] != key[i])
			return false;
	return true;
}

/* Where the key is; *room: where it would be put. */
LOOP_FUNCTION uint find(LOOP_GLOBAL const struct entry *table, LOOP_GLOBAL const uchar *key, uint bytes, uint *room)
{
	uint at = hash_of(key, bytes) / LOOP_MAX_LANES % KV_ENTRIES;
	*room = NO_ENTRY;
	for (uint looked = 0; looked < KV_ENTRIES; ++looked, at = (at + 1) % KV_ENTRIES) {
		LOOP_GLOBAL const struct entry *one = table + at;
		if (one->key_bytes == 0 || one->key_bytes == DELETED) {
			if (*room == NO_ENTRY)
				*room = at;
			if (one->key_bytes == 0)
				return NO_ENTRY;
		} else if (is_key(one, key, bytes)) {
			return at;
		}
	}
	return NO_ENTRY;
}

LOOP_FUNCTION uint say(LOOP_GLOBAL uchar *out, LOOP_CONSTANT const char *text, uint bytes)
{
	if (loop_item() == 0) {
		for (uint i = 0; i < bytes; ++i)
			out[i] = (uchar)text[i];
		out[bytes] = '\n';
	}
	return bytes + 1;
}

LOOP_FUNCTION ulong number_in(LOOP_GLOBAL const struct entry *one)
{
	ulong n = 0;
	for (uint i = 0; i < one->value_bytes; ++i) {
		if (one->value[i] < '0' || one->value[i] > '9')
			return 0;
		n = n * 10 + (one->value[i] - '0');
	}
	return n;
}

LOOP_FUNCTION uint print(uchar *text, ulong n)
{
	uint digits = 1;
	for (ulong left = n; left >= 10; left /= 10)
		++digits;
	for (uint i = digits; i-- > 0; n /= 10)
		text[i] = (uchar)('0' + n % 10);
	return digits;
}

/* "=value" */
LOOP_FUNCTION uint say_value(LOOP_GLOBAL uchar *out, LOOP_GLOBAL const uchar *text, uint bytes)
{
	for (uint i = loop_item(); i < bytes; i += loop_items())
		out[1 + i] = text[i];
	if (loop_item() == 0) {
		out[0] = '=';
		out[1 + bytes] = '\n';
	}
	return bytes + 2;
}

LOOP_FUNCTION void put_entry(struct loop *l, LOOP_GLOBAL struct entry *one, LOOP_GLOBAL const uchar *key, uint key_bytes, uint value_bytes)
{
	loop_copy(l, one->key, key, key_bytes);
	loop_store(l, &one->key_bytes, key_bytes, 1);
	loop_store(l, &one->value_bytes, value_bytes, 1);
}

LOOP_FUNCTION uint add(struct loop *l, LOOP_GLOBAL struct entry *to, bool is_new, LOOP_GLOBAL const uchar *key, uint key_bytes,
		LOOP_GLOBAL uchar *out)
{
	uchar number[20];
	const uint digits = print(number, is_new ? 1 : number_in(to) + 1);
	for (uint i = 0; i < digits; i += 8) {
		ulong eight = 0;
		for (uint k = i; k < digits && k < i + 8; ++k)
			eight |= (ulong)number[k] << 8 * (k - i);
		loop_store(l, to->value + i, eight, loop_least(digits - i, 8u));
	}
	put_entry(l, to, key, key_bytes, digits);
	if (loop_item() == 0) {
		out[0] = '=';
		for (uint i = 0; i < digits; ++i)
			out[1 + i] = number[i];
		out[1 + digits] = '\n';
	}
	return digits + 2;
}

/* Gives the answer's bytes. */
LOOP_FUNCTION uint serve(struct loop *l, LOOP_GLOBAL const uchar *line, uint bytes, LOOP_GLOBAL uchar *out)
{
	LOOP_GLOBAL struct entry *table = (LOOP_GLOBAL struct entry *)loop_state(l);
	uint end = 4;
	while (end < bytes && line[end] != ' ')
		++end;
	const uint key_bytes = end - 4, value = loop_least(end + 1, bytes), value_bytes = bytes - value;
	uint room;
	const uint at = find(table, line + 4, key_bytes, &room);
	const uchar what = line[0];
	if ((what == 'G' || what == 'D') && at == NO_ENTRY)
		return say(out, "NONE", 4);
	if (what == 'G')
		return say_value(out, table[at].value, table[at].value_bytes);
	if (what == 'D') {
		loop_store(l, &table[at].key_bytes, DELETED, 1);
		return say(out, "OK", 2);
	}
	const uint to = at == NO_ENTRY ? room : at;
	if (to == NO_ENTRY)
		return say(out, "FULL", 4);
	if (what == 'A')
		return add(l, table + to, at == NO_ENTRY, line + 4, key_bytes, out);
	loop_copy(l, table[to].value, line + value, value_bytes);
	put_entry(l, table + to, line + 4, key_bytes, value_bytes);
	return say(out, "OK", 2);
}

LOOP_FUNCTION bool is_request(LOOP_GLOBAL const uchar *line, uint bytes)
{
	LOOP_CONSTANT const char *words = "SET GET ADD DEL ";
	bool known = false;
	for (uint w = 0; w < 4; ++w)
		if (bytes > 4 && line[0] == words[4 * w] && line[1] == words[4 * w + 1] &&
		    line[2] == words[4 * w + 2] && line[3] == ' ')
			known = true;
	if (!known)
		return false;
	uint end = 4;
	while (end < bytes && line[end] != ' ')
		++end;
	const bool has_value = end < bytes;
	return end > 4 && end - 4 <= KEY_BYTES && has_value == (line[0] == 'S') &&
	       (!has_value || bytes - end - 1 <= VALUE_BYTES);
}

/* A client sends no more. Requests of it may be on their way to other lanes: what is behind them all closes it. */
LOOP_FUNCTION void close_behind(struct loop *l, uint client, uint home)
{
	const uint next = (loop_lane() + 1) % loop_lanes();
	if (next == home)
		loop_close(l, client);
	else
		loop_post(l, next, 0, (ulong)home << 32 | client);
}

LOOP_PROGRAM void loop_arrived(struct loop *l, const struct loop_event *e)
{
	if (e->kind == LOOP_CLOSED)
		close_behind(l, e->source, loop_lane());
	else if (e->kind == LOOP_POSTED && e->bytes == 0)
		close_behind(l, (uint)e->cookie, (uint)(e->cookie >> 32));
	if (e->kind != LOOP_RECEIVED && (e->kind != LOOP_POSTED || e->bytes == 0))
		return;
	LOOP_GLOBAL const uchar *line = loop_data(l);
	const uint client = e->kind == LOOP_RECEIVED ? e->source : (uint)e->cookie;
	if (!is_request(line, e->bytes)) {
		loop_send(l, client, say(loop_out(l), "BAD", 3));
		return;
	}
	uint end = 4;
	while (end < e->bytes && line[end] != ' ')
		++end;
	const uint owner = hash_of(line + 4, end - 4) % LOOP_MAX_LANES % loop_lanes();
	if (owner == loop_lane()) {
		loop_send(l, client, serve(l, line, e->bytes, loop_out(l)));
		return;
	}
	LOOP_GLOBAL uchar *out = loop_out(l);
	for (uint i = loop_item(); i < e->bytes; i += loop_items())
		out[i] = line[i];
	loop_post(l, owner, e->bytes, client);
}
