-- SPDX-License-Identifier: GPL-2.0-or-later
--
-- For sbatch, srun and salloc (CliFilterPlugins=lua, /etc/slurm/cli_filter.lua): what --protect means for Slurm. A site that has such a
-- file calls kagemusha_pre_submit() from it.

-- The job gets a second node, for the standby, and goes on when one of the two is lost.
function kagemusha_pre_submit(options)
    local ours = options["spank"] and options["spank"]["kagemusha"]
    if not ours or ours["protect"] ~= "set" then
        return slurm.SUCCESS
    end
    if options["type"] ~= "sbatch" then
        slurm.log_error("--protect is for sbatch: what srun and salloc run on a node is lost with it")
        return slurm.ERROR
    end
    local nodes = options["nodes"]
    if nodes ~= nil and nodes ~= "1-0" and nodes ~= "1" and nodes ~= "2" and nodes ~= "2-2" and nodes ~= "1-1" then
        slurm.log_error("--protect: a VM is on one node and its standby on another: leave -N out, not -N%s", nodes)
        return slurm.ERROR
    end
    if not options["gres"] and not options["gpus-per-node"] then
        slurm.log_error("--protect is for jobs with a GPU: give --gres, as --gres=gpu:kage:1")
        return slurm.ERROR
    end
    options["nodes"] = "2-2"
    options["ntasks-per-node"] = "1"
    options["no-kill"] = "set"
    return slurm.SUCCESS
end

function slurm_cli_setup_defaults(options, early_pass)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
    return kagemusha_pre_submit(options)
end

function slurm_cli_post_submit(pack_offset, job_id, step_id)
    return slurm.SUCCESS
end
