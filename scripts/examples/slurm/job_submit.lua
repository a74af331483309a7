-- job_submit.lua of Slurm, beside slurm.conf (JobSubmitPlugins=lua). What a user writes:
--
--     sbatch -p harvest --comment 'tidegate: profile=summarise sla=0.40' job.sh
--
-- becomes the feature that nodes have which give as much, and one slot for each GPU. A comment that is not understood
-- refuses the submission. Other jobs pass as they are. `tidegate place` reads comments by the same rules.

local RIGHT = "write --comment 'tidegate: profile=NAME sla=SHARE', as in "
    .. "'tidegate: profile=summarise sla=0.40'; gpus=N for more than one"
-- Per cent from one feature to the next, as `tidegate place` publishes them.
local STEP = 10

local function refuse(why)
    slurm.log_user("tidegate: " .. why .. "; " .. RIGHT)
    return slurm.ERROR
end

-- The share as millionths; nil: it is none.
local function millionths(text)
    local whole, part = text:match("^(%d)%.?(%d*)$")
    if whole == nil or #part > 6 then return nil end
    local value = tonumber(whole .. part .. string.rep("0", 6 - #part))
    -- Less than one per cent rounds up to one.
    if value < 1 or value > 1000000 then return nil end
    return value
end

function slurm_job_submit(job, partitions, uid)
    local comment = job.comment
    if comment == nil or comment:sub(1, 9) ~= "tidegate:" then return slurm.SUCCESS end
    local profile, sla, gpus
    for word in comment:sub(10):gmatch("%S+") do
        local key, value = word:match("^(%l+)=(.*)$")
        if key == "profile" and value:match("^[a-z0-9_]+$") and #value <= 32 then
            if profile then return refuse("a word stands twice") end
            profile = value
        elseif key == "sla" then
            if sla then return refuse("a word stands twice") end
            sla = millionths(value)
            if sla == nil then return refuse("sla is no share from 0.01 to 1") end
        elseif key == "gpus" then
            if gpus then return refuse("a word stands twice") end
            gpus = value:match("^%d+$") and tonumber(value)
            if not gpus or gpus < 1 or gpus > 64 then return refuse("gpus is no number from 1 to 64") end
        else
            return refuse("a word is not understood")
        end
    end
    if profile == nil then return refuse("profile is missing") end
    if sla == nil then return refuse("sla is missing") end
    gpus = gpus or 1
    local percent = math.ceil(sla / (STEP * 10000)) * STEP
    local feature = string.format("tg.%s.%dx%d", profile, gpus, percent)
    if job.features ~= nil and job.features ~= "" then
        job.features = job.features .. "&" .. feature
    else
        job.features = feature
    end
    job.tres_per_node = "gres:harvest:" .. gpus
    slurm.log_user("tidegate: waits for a node that gives %s %d %% of its throughput alone", profile, percent)
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
