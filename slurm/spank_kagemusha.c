/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A plugin of Slurm (SPANK): the option --protect of sbatch, and the program of a job that has a VM, which it runs there.
 *
 *     required spank_kagemusha.so [task=PROGRAM]      in plugstack.conf
 *
 * What is decided about a job is decided elsewhere: cli_filter.lua asks for two nodes, the prolog makes the VM. This only says that
 * a job is to be protected (SPANK_KAGEMUSHA_PROTECT in the environment of prolog and epilog), and replaces the program with
 * `task PROGRAM…` on a node where the prolog has made a VM for the job.
 *
 * Runs in sbatch, srun and salloc with their users' rights, and in slurmstepd, with the job's user's where noted.
 */
#include <slurm/spank.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(kagemusha, 1)

static int protect;

static int take_protect(int value, const char *argument, int remote)
{
    (void)value, (void)argument, (void)remote;
    protect = 1;
    return 0;
}

static struct spank_option options[] = {
    {"protect", NULL, "The job's VM survives the death of its node: a second one is its standby", 0, 0, take_protect},
    SPANK_OPTIONS_TABLE_END,
};

/* In all contexts. */
int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
    for (struct spank_option *one = options; one->name != NULL; one++)
        if (spank_option_register(spank, one) != ESPANK_SUCCESS)
            return -1;
    return 0;
}

/* In all contexts. What it sets comes to prolog and epilog as SPANK_…. */
int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    const spank_context_t context = spank_context();

    (void)argc, (void)argv;
    if (!protect || (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR))
        return 0;
    if (spank_job_control_setenv(spank, "KAGEMUSHA_PROTECT", "yes", 1) != ESPANK_SUCCESS) {
        slurm_error("kagemusha: --protect: Slurm did not take a variable for the prolog");
        return -1;
    }
    return 0;
}

static int has_vm(uint32_t job)
{
    char path[64];
    struct stat status;

    snprintf(path, sizeof path, "/run/kagemusha/slurm/%u", job);
    /* Nobody else can make it there. */
    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == 0;
}

/*
 * In the task's process, as the job's user, before its program is executed. Slurm 22.05 has no call that puts words in front of a
 * program's, so the new program begins here; slurmstepd has no more to do in this process.
 */
int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    uint32_t job;
    int words;
    char **program, **environment, **replaced;
    const char *task = "/usr/libexec/kagemusha/slurm/task";

    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "task=", 5) == 0)
            task = argv[i] + 5;
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS || !has_vm(job))
        return 0;
    if (spank_get_item(spank, S_JOB_ARGV, &words, &program) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS || words < 1) {
        slurm_error("kagemusha: job %u: Slurm does not say which program it is", job);
        return -1;
    }
    replaced = calloc(words + 2, sizeof *replaced);
    if (replaced == NULL)
        return -1;
    replaced[0] = (char *)task;
    memcpy(replaced + 1, program, words * sizeof *replaced);
    execve(replaced[0], replaced, environment);
    slurm_error("kagemusha: job %u: %s: %s", job, replaced[0], strerror(errno));
    return -1;
}
