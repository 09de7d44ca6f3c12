/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * complete-job JOB STATUS: tells Slurm that a job has ended with this exit status of its program. For jobs whose first node, which
 * would tell it, is lost: none of Slurm's commands says so. Only Slurm's administrators and the job's owner may.
 */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static int number(const char *text, unsigned long most, unsigned long *value)
{
    char *end;

    errno = 0;
    *value = strtoul(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-' && *value <= most;
}

int main(int argc, char **argv)
{
    unsigned long job, status;

    if (argc != 3 || !number(argv[1], NO_VAL - 1, &job) || !number(argv[2], 255, &status)) {
        fprintf(stderr, "usage: complete-job JOB STATUS\n");
        return 2;
    }
    slurm_init(NULL);
    if (slurm_complete_job(job, status << 8) != SLURM_SUCCESS) {
        fprintf(stderr, "complete-job: job %lu: %s\n", job, slurm_strerror(errno));
        return 1;
    }
    return 0;
}
