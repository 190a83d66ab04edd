--needs shard commands flag floors plain retention
--exports leaving
-- Finished jobs that go at a time of their own, not by the count and the age that their queue keeps: `leaving:<queue>`,
-- job -> when it may go, ms. So go the jobs of emissions that say how long they are kept, what completed in a queue that
-- keeps nothing, and what somebody removed (`remove.lua`).
--   ended -- the call that ends it --> in `leaving` -- its time has come, and nobody may ask for it --> removed
-- What must hold:
-- - such a job stands in no other list of what ended, so it counts for no other job, and no other one for it;
-- - while the set has jobs, `leave:<queue>` in `due` has a time: any worker's turn looks, whoever ended the job;
-- - a job goes only once the floors of all emitters are past its time (`floors.lua`), which is at its end or later. So an
--   emitter gets its outcome, and a repeated add makes no second job. A floor holds back WINDOW at most;
-- - a place that the record does not confirm, because the job runs again, means nothing.
-- Crash windows:
--   `dies-after-end`     the end, the place and the entry in `due` are one call: another worker's turn removes the job
--   `emitter-dies`       its floor rises no more: the job goes after WINDOW
--   `emitter-slow`       a large outcome stays until it was read and the floor is past it, for WINDOW at most
--   `settle-repeated`    a worker that repeats its call is answered from what its lane keeps, or by `settle_one.lua`: a job
--                        that is gone was settled
--   `others-not-told`    so many joined the job that a chore goes on telling them: it stays until they are told
--   `entry-lost`         who sweeps the queue makes the entry anew
-- Rejected: an entry in `due` for each job, 20 of which a turn does; removing the job in the call that ends it: the emitter
-- may repeat its add at that moment.
leaving = {}
local MOST = 1000 -- jobs that one look removes
local PATIENCE = 1000 -- ms until somebody looks again, where a job is held back

-- Sees to it that somebody looks when the first one may go.
local function note(queue, earliest)
  local first = tonumber((commands.try('ZRANGE', shard.key('leaving', queue), 0, 0, 'WITHSCORES') or {})[2])
  if first then
    redis.call('ZADD', shard.root .. ':due', commands.whole(math.max(first, earliest)), 'leave:' .. queue)
  else
    redis.call('ZREM', shard.root .. ':due', 'leave:' .. queue)
  end
end

-- Whether a chore still has to tell who joined the job.
local function is_awaited(id, text)
  local flags = string.byte(text, 2)
  return flags and bit.band(flags, FLAG.SIDE) ~= 0 and redis.call('ZSCORE', shard.root .. ':due', 'hear:' .. id)
end

-- Removes the jobs of a queue whose time has come; returns how many.
function leaving.sweep(queue, now)
  local name = shard.key('leaving', queue)
  local ids = commands.try('ZRANGEBYSCORE', name, '-inf', '(' .. commands.whole(floors.read(now)), 'LIMIT', 0, MOST) or {}
  local names, places, gone, records = {}, {}, {}, {}
  for i, id in ipairs(ids) do names[i] = shard.job_root .. id end
  for i, text in ipairs(commands.get_all(names)) do
    local first = text and string.byte(text)
    local is_open = first and first >= 32 and first < 48 and not plain.has_ended(text)
    if not text or not is_awaited(ids[i], text) then
      places[#places + 1] = ids[i]
      if not is_open then gone[#gone + 1], records[#records + 1] = ids[i], text end
    end
  end
  if places[1] then
    commands.call_many('ZREM', name, places)
    retention.forget(gone, records)
  end
  note(queue, #ids == MOST and places[1] and now or now + PATIENCE)
  return #gone
end
