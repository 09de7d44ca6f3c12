/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Names of tables of cuGetExportTable: initialisers of a CUuuid. The names are public, in programs
 * that ask for them; what the slots do is in docs/notes/nvidia.md.
 */
#ifndef KVG_CUDA_EXPORT_TABLES_H
#define KVG_CUDA_EXPORT_TABLES_H

#define KVG_CUDA_TABLE_INTERFACE \
	{ { '\x6b', '\xd5', '\xfb', '\x6c', '\x5b', '\xf4', '\xe7', '\x4a', \
	    '\x89', '\x87', '\xd9', '\x39', '\x12', '\xfd', '\x9d', '\xf9' } }
#define KVG_CUDA_TABLE_CHECK \
	{ { '\xd4', '\x08', '\x20', '\x55', '\xbd', '\xe6', '\x70', '\x4b', \
	    '\x8d', '\x34', '\xba', '\x12', '\x3c', '\x66', '\xe1', '\xf2' } }
#define KVG_CUDA_TABLE_HOOKS \
	{ { '\xa0', '\x94', '\x79', '\x8c', '\x2e', '\x74', '\x2e', '\x74', \
	    '\x93', '\xf2', '\x08', '\x00', '\x20', '\x0c', '\x0a', '\x66' } }
#define KVG_CUDA_TABLE_CURRENT \
	{ { '\x42', '\xd8', '\x5a', '\x81', '\x23', '\xf6', '\xcb', '\x47', \
	    '\x82', '\x98', '\xf6', '\xe7', '\x8a', '\x3a', '\xec', '\xdc' } }
#define KVG_CUDA_TABLE_STORAGE \
	{ { '\xc6', '\x93', '\x33', '\x6e', '\x11', '\x21', '\xdf', '\x11', \
	    '\xa8', '\xc3', '\x68', '\xf3', '\x55', '\xd8', '\x95', '\x93' } }
#define KVG_CUDA_TABLE_CONTEXT_CHECKS \
	{ { '\x26', '\x3e', '\x88', '\x60', '\x7c', '\xd2', '\x61', '\x43', \
	    '\x92', '\xf6', '\xbb', '\xd5', '\x00', '\x6d', '\xfa', '\x7e' } }
#define KVG_CUDA_TABLE_NUMBERS \
	{ { '\x21', '\x31', '\x8c', '\x60', '\x97', '\x14', '\x32', '\x48', \
	    '\x8c', '\xa6', '\x41', '\xff', '\x73', '\x24', '\xc8', '\xf2' } }
#define KVG_CUDA_TABLE_FUNCTIONS \
	{ { '\x6e', '\x16', '\x3f', '\xbe', '\xb9', '\x58', '\x44', '\x4d', \
	    '\x83', '\x5c', '\xe1', '\x82', '\xaf', '\xf1', '\x99', '\x1e' } }
#define KVG_CUDA_TABLE_LAYOUT \
	{ { '\x17', '\x34', '\xdc', '\x26', '\x80', '\x0d', '\x47', '\x45', \
	    '\x87', '\x26', '\xc0', '\xf1', '\xe7', '\xdd', '\x8b', '\xca' } }

#endif
