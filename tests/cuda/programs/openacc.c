// SPDX-License-Identifier: GPL-2.0-or-later
//
// A program of OpenACC, as openmp.c: gangs, workers and vectors, reductions, queues.
#include <openacc.h>
#include <stdio.h>

enum { n = 1500 };

static int failures;

static void expect(int holds, const char *what)
{
	printf("%s: %s\n", what, holds ? "ok" : "WRONG");
	failures += !holds;
}

static void loops(void)
{
	static int x[n], y[n];
	long sum = 0;
	int right = 1;

	for (int i = 0; i < n; i++) {
		x[i] = i;
		y[i] = 1;
	}
#pragma acc parallel loop gang worker vector copyin(x) copy(y)
	for (int i = 0; i < n; i++)
		y[i] += 3 * x[i];
#pragma acc parallel loop reduction(+ : sum) copyin(y)
	for (int i = 0; i < n; i++)
		sum += y[i];
	for (int i = 0; i < n; i++)
		right = right && y[i] == 1 + 3 * i;
	expect(right, "a loop of gangs, workers and vectors");
	expect(sum == n + 3L * n * (n - 1) / 2, "a reduction");
}

static void nested(void)
{
	static int sums[16];
	int right = 1;

#pragma acc parallel loop gang copyout(sums)
	for (int i = 0; i < 16; i++) {
		int sum = 0;
#pragma acc loop vector reduction(+ : sum)
		for (int j = 0; j < 100; j++)
			sum += i * j;
		sums[i] = sum;
	}
	for (int i = 0; i < 16; i++)
		right = right && sums[i] == i * 4950;
	expect(right, "vectors inside of gangs");
}

static void queues(void)
{
	static int a[n], b[n];
	int right = 1;

#pragma acc data create(a, b)
	{
#pragma acc parallel loop async(1) present(a)
		for (int i = 0; i < n; i++)
			a[i] = i;
#pragma acc parallel loop async(2) present(b)
		for (int i = 0; i < n; i++)
			b[i] = 2 * i;
#pragma acc wait(2) async(1)
#pragma acc parallel loop async(1) present(a, b)
		for (int i = 0; i < n; i++)
			a[i] += b[i];
#pragma acc update self(a) async(1)
#pragma acc wait
	}
	for (int i = 0; i < n; i++)
		right = right && a[i] == 3 * i;
	expect(right, "queues that wait for each other");
}

int main(void)
{
	expect(acc_get_num_devices(acc_device_nvidia) >= 1 && acc_get_device_type() == acc_device_nvidia, "a device");
	loops();
	nested();
	queues();
	return failures != 0;
}
