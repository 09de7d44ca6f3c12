/* SPDX-License-Identifier: GPL-2.0-or-later */
/* echo: what a client sends comes back. */
LOOP_PROGRAM void loop_arrived(struct loop *l, const struct loop_event *e)
{
	if (e->kind == LOOP_CLOSED)
		loop_close(l, e->source);
	if (e->kind != LOOP_RECEIVED)
		return;
	LOOP_GLOBAL uchar *out = loop_out(l);
	for (uint i = loop_item(); i < e->bytes; i += loop_items())
		out[i] = loop_data(l)[i];
	loop_send(l, e->source, e->bytes);
}
