/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Kernels in C that clang makes PTX of, and the machine's compiler code of the host: clang_test.cpp compares the
 * results. On the host a kernel is a function that is called once for each thread, so none of these waits for another.
 */
#ifdef __NVPTX__
#define KERNEL __attribute__((nvptx_kernel))
#define INDEX (__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x())
#else
#define KERNEL
extern unsigned kernel_index;
#define INDEX kernel_index
#endif

typedef unsigned long long u64;
typedef long long s64;

/* 64-bit mixing, rotations, high products */
static u64 mixed(u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x = (x << 17) | (x >> 47);
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ (x >> 29);
}

KERNEL void integers(unsigned *out, const unsigned *in, unsigned n)
{
	unsigned i = INDEX;
	if (i >= n)
		return;
	unsigned a = in[i];
	int b = (int)in[(i * 7 + 3) % n];
	u64 m = mixed((u64)a << 32 | (unsigned)b);
	int divisor = b % 1000 ? b % 1000 : 17;
	unsigned r = (unsigned)((int)a / divisor) ^ (a % (unsigned)(divisor & 0xff | 1)) ^ (unsigned)(m >> 11);
	r += (unsigned)((s64)(int)a * b >> 13) + (unsigned)__builtin_popcountll(m) + (unsigned)__builtin_clz(a | 1);
	r ^= (unsigned)(signed char)a << 3 ^ (unsigned)(short)b ^ (unsigned)__builtin_ctzll(m | 1ULL << 40);
	r += (unsigned)((s64)m % 1000003) + (unsigned)(m / (a | 1));
	out[i] = r;
}

/* divergent loops and a switch */
KERNEL void control(unsigned *out, const unsigned *in, unsigned n)
{
	unsigned i = INDEX;
	if (i >= n)
		return;
	unsigned steps = 0;
	u64 x = in[i] % 100000 + 1;
	while (x != 1 && steps < 400) {
		x = x & 1 ? 3 * x + 1 : x / 2;
		if (x % 17 == 5)
			continue;
		steps++;
	}
	switch (steps & 7) {
	case 0: steps *= 3; break;
	case 1: steps += i; break;
	case 2: steps ^= 0x5555; break;
	case 3: steps = ~steps; break;
	case 4: steps -= in[i]; /* and on */
	case 5: steps <<= 2; break;
	default: steps >>= 1;
	}
	out[i] = steps;
}

/* a real call, with an array of the caller's */
__attribute__((noinline)) static unsigned folded(const unsigned char *bytes, int n, unsigned seed)
{
	if (n == 0)
		return seed;
	return folded(bytes + 1, n - 1, seed * 31 + *bytes);
}

KERNEL void calls(unsigned *out, const unsigned *in, unsigned n)
{
	unsigned i = INDEX;
	unsigned char local[24];
	if (i >= n)
		return;
	for (int k = 0; k < 24; k++)
		local[(k * 5 + i) % 24] = (unsigned char)(in[i] >> (k & 15));
	out[i] = folded(local, (int)(in[i] % 20) + 2, i);
}

KERNEL void floats(float *out, const float *in, unsigned n)
{
	unsigned i = INDEX;
	if (i >= n)
		return;
	float a = in[i], b = in[(i + 1) % n];
	double d = (double)a * b + 0.1;
	int whole = (int)(a * 3.5f);
	float r = a / (b * b + 1.0f) + __builtin_sqrtf(a * a + b * b);
	r = __builtin_fmaf(r, a, b);
	r += (float)(d / 3.0) + (float)whole + (float)(unsigned)(b * b);
	r += a < b ? __builtin_fabsf(a) : -b;
	out[i] = r + (float)(s64)(d * 1e6);
}

KERNEL void doubles(double *out, const float *in, unsigned n)
{
	unsigned i = INDEX;
	if (i >= n)
		return;
	double x = in[i];
	double s = 0;
	for (int k = 1; k < 40; k++) {
		s += x / k;
		x = x * 0.75 + (double)(k % 3) - s * 0.001;
		s = s > 1e6 ? __builtin_sqrt(s) : s;
	}
	out[i] = s - (double)(s64)s;
}
