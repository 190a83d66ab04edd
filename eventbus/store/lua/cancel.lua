-- Cancels jobs, each with those of its groups unless its id names one of them.
-- Repeat-safe: what was cancelled stays so, and the same call is answered the same. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now key_ttl jobs
-- jobs: id queue call text of
--   call: fresh for each request, the same when it is sent again
--   of: the state in which the job of that id must be, or ''. If it is open in another one, its groups stay as they are, too
-- answer: for each job the first of these that is true of it or of one of its groups:
--   ended | asked (it runs, its worker was told; or its tree stops) | over (it had ended, or was stopping) | other | unknown
--include shard args commands guard fields holds cancelling epilogue

local now = args.take_now()
local key_ttl, count = args.take(), args.take()
local RANKS = { other = 5, ended = 4, asked = 3, over = 2, unknown = 1 }
local words, jobs = {}, {}

local function targets_of(id, queue)
  local targets = { id }
  if string.find(id, '@', 1, true) then return targets end
  if queue == '' then queue = (fields.peek(id) or {}).queue end
  for _, group in ipairs(queue and commands.try('SMEMBERS', shard.key('groups', queue)) or {}) do
    targets[#targets + 1] = id .. '@' .. group
  end
  return targets
end

for i = 1, count do
  local id, queue = args.take(), args.take()
  jobs[i] = { targets = targets_of(id, queue), call = args.take(), text = args.take(), of = args.take() }
end
local waiting = {}
for _, job in ipairs(jobs) do
  for _, id in ipairs(job.targets) do waiting[#waiting + 1] = id end
end
holds.load(waiting)

shard.begin_writing()
for i, job in ipairs(jobs) do
  words[i] = 'unknown'
  for place, id in ipairs(job.targets) do
    local word = words[i] ~= 'other' and cancelling.cancel(id, job.call, job.text, now, key_ttl, place == 1 and job.of or '')
    if word and RANKS[word] > RANKS[words[i]] then words[i] = word end
  end
end
local ready = {}
epilogue.end_call(ready, now)
return words
