// SPDX-License-Identifier: GPL-2.0-or-later
//
// A program of OpenMP whose target regions GCC compiles for NVIDIA GPUs. It computes each result on the processor,
// too, and compares: exact, because all values are small integers. What it prints does not depend on the device.
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

static int failures;

static void expect(int holds, const char *what)
{
	printf("%s: %s\n", what, holds ? "ok" : "WRONG");
	failures += !holds;
}

static void on_device(void)
{
	int on_host = 1;

#pragma omp target map(tofrom : on_host)
	on_host = omp_is_initial_device();
	expect(omp_get_num_devices() >= 1 && !on_host, "a target region runs on the device");
}

static void saxpy(void)
{
	enum { n = 3000 };
	static float x[n], y[n];
	int right = 1;

	for (int i = 0; i < n; i++) {
		x[i] = i;
		y[i] = 2 * i;
	}
#pragma omp target teams distribute parallel for map(to : x) map(tofrom : y)
	for (int i = 0; i < n; i++)
		y[i] = 3 * x[i] + y[i];
	for (int i = 0; i < n; i++)
		right = right && y[i] == 5.0f * i;
	expect(right, "teams distribute parallel for");
}

static void reductions(void)
{
	enum { n = 2000 };
	long sum = 0;
	int largest = 0;
	double product = 1;

#pragma omp target teams distribute parallel for reduction(+ : sum) reduction(max : largest) map(tofrom : sum, largest)
	for (int i = 0; i < n; i++) {
		sum += i;
		int value = (i * 7919) % 1009;
		largest = value > largest ? value : largest;
	}
#pragma omp target parallel for reduction(* : product) map(tofrom : product)
	for (int i = 0; i < 40; i++)
		product *= 2;
	expect(sum == (long)n * (n - 1) / 2 && largest == 1008 && product == ldexp(1, 40), "reductions");
}

static void atomics(void)
{
	int counts[16] = {0};
	int taken[400] = {0};
	int next = 0, right = 1;

#pragma omp target teams distribute parallel for map(tofrom : counts, taken, next)
	for (int i = 0; i < 400; i++) {
		int place;
#pragma omp atomic
		counts[i % 16]++;
#pragma omp atomic capture
		place = next++;
		taken[place] = 1;
	}
	for (int i = 0; i < 16; i++)
		right = right && counts[i] == 25;
	for (int i = 0; i < 400; i++)
		right = right && taken[i];
	expect(right && next == 400, "atomics");
}

static void matrix_product(void)
{
	enum { n = 24 };
	static double a[n][n], b[n][n], c[n][n];
	int right = 1;

	for (int i = 0; i < n; i++)
		for (int j = 0; j < n; j++) {
			a[i][j] = i + j;
			b[i][j] = i - 2 * j;
		}
#pragma omp target teams distribute parallel for collapse(2) map(to : a, b) map(from : c)
	for (int i = 0; i < n; i++)
		for (int j = 0; j < n; j++) {
			double sum = 0;
#pragma omp simd reduction(+ : sum)
			for (int k = 0; k < n; k++)
				sum += a[i][k] * b[k][j];
			c[i][j] = sum;
		}
	for (int i = 0; i < n; i++)
		for (int j = 0; j < n; j++) {
			double sum = 0;
			for (int k = 0; k < n; k++)
				sum += a[i][k] * b[k][j];
			right = right && c[i][j] == sum;
		}
	expect(right, "a matrix product");
}

// Threads of a team that wait for each other, work of one of them, and a critical section.
static void teams(void)
{
	int per_team[4] = {0}, order = 0, together = 0;

#pragma omp target teams num_teams(4) thread_limit(64) map(tofrom : per_team)
	{
		int mine = 0;
#pragma omp parallel num_threads(4)
		{
#pragma omp critical
			mine += 1 + omp_get_thread_num();
#pragma omp barrier
#pragma omp single
			mine *= omp_get_num_threads();
		}
		per_team[omp_get_team_num()] = mine;
	}
#pragma omp target map(tofrom : order, together)
	{
#pragma omp parallel num_threads(4)
		{
#pragma omp for ordered schedule(static, 1)
			for (int i = 0; i < 8; i++) {
#pragma omp ordered
				order = order * 8 + i;
			}
#pragma omp sections reduction(+ : together)
			{
#pragma omp section
				together += 1;
#pragma omp section
				together += 10;
			}
		}
	}
	expect(per_team[0] == 40 && per_team[1] == 40 && per_team[2] == 40 && per_team[3] == 40, "teams");
	expect(order == 01234567 && together == 11, "ordered loops and sections");
}

struct node {
	int value;
	struct node *next;
};

#pragma omp declare target
static int table[8] = {1, 1, 2, 3, 5, 8, 13, 21};
static int fibonacci(int n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
#pragma omp end declare target

// What needs newlib on the device: malloc, and calls that are not inlined; and data that stays there.
static void memory_and_calls(void)
{
	int sum = 0, value = 0;
	int *data = malloc(64 * sizeof *data);

#pragma omp target map(tofrom : sum, value)
	{
		struct node *list = NULL;
		for (int i = 1; i <= 10; i++) {
			struct node *one = malloc(sizeof *one);
			one->value = i;
			one->next = list;
			list = one;
		}
		while (list) {
			struct node *next = list->next;
			sum += list->value;
			free(list);
			list = next;
		}
		value = fibonacci(12) + table[7];
	}
	expect(sum == 55 && value == 144 + 21, "malloc, recursion and variables of the device");

	for (int i = 0; i < 64; i++)
		data[i] = i;
#pragma omp target enter data map(to : data[0 : 64])
	for (int round = 0; round < 3; round++) {
#pragma omp target teams distribute parallel for
		for (int i = 0; i < 64; i++)
			data[i] = data[i] * 2 + 1;
	}
#pragma omp target update from(data[0 : 32])
	expect(data[0] == 7 && data[31] == 31 * 8 + 7 && data[32] == 32, "an update of a part");
#pragma omp target exit data map(from : data[0 : 64])
	expect(data[63] == 63 * 8 + 7, "data that stays on the device");
	free(data);
}

int main(void)
{
	on_device();
	saxpy();
	reductions();
	atomics();
	matrix_product();
	teams();
	memory_and_calls();
	return failures != 0;
}
