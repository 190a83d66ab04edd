--needs shard commands hold
--exports holds
-- Holds: who runs a job. A claimed job leaves its queue and stands in `held:<worker>`, a hash of job -> hold, until it
-- is settled (`hold.lua` has the bytes). Its record does not change by that, except that members and full roots of trees name
-- their holder (`token`).
--   Fields that are no jobs: `#`, the worker's registration; `#` with a lane's name, the last call of the lane; and
--     `#:blame`, while it is rescued in more than one call (`blame.lua`).
-- `workers` says when the leases of a worker end: those of all that it holds, at once. A claim begins a whole lease for
-- all of them, for who takes turns is alive; a renewal does the same for a worker whose turns are rare.
--
-- What must hold:
-- - an open job that can be claimed stands in its queue or in one hash of holds, never in both;
-- - who settles, notes or waits proves the hold with its token; so what has left the hash is settled by nobody else;
-- - who holds jobs stands in `workers`: the first turn registers the worker, and the call that finds its last hold gone
--   unregisters it. A turn that comes late registers it again, and is rescued again;
-- - the last calls stay for a while when the worker is gone, so that a late copy of one of them claims nothing.
-- Crash windows: `turn-not-answered` (the call is repeated, and is answered from the holds with its token),
-- `turn-given-up` (the worker never hears what it claimed: its renewal does not name these jobs, and gives them back),
-- `settle-forgotten` (a failover loses the end of a job, so that it is held again: the renewal gives it back).
holds = {}

-- Longer than 64 bytes on purpose: a hash with such a value is no listpack, in which each access would be a search.
local REGISTRATION = 'This worker holds the jobs below. A hold is: when it was claimed, a mark, the token.'
local REMEMBERED = 600000 -- the last calls of a worker that is gone

function holds.register(worker, lease_end)
  redis.call('HSET', shard.key('held', worker), '#', REGISTRATION)
  redis.call('PERSIST', shard.key('held', worker))
  redis.call('ZADD', shard.root .. ':workers', lease_end, worker)
end

-- For a worker that holds nothing any more.
function holds.unregister(worker)
  if commands.try('HDEL', shard.key('held', worker), '#', '#:blame') then redis.call('PEXPIRE', shard.key('held', worker), REMEMBERED) end
  redis.call('ZREM', shard.root .. ':workers', worker)
end

-- The hold of a job if this very token has it.
function holds.read(id, token)
  local worker = Hold.worker_of(token)
  local hold = worker and commands.try('HGET', shard.key('held', worker), id)
  return hold and Hold.token(hold) == token and hold or nil
end

local loaded = {} -- job -> its hold or false, of those asked for together

-- Asks every worker for its holds of these jobs, which do not name their holders: one command a worker for all.
function holds.load(ids)
  for _, id in ipairs(ids) do loaded[id] = false end
  for _, worker in ipairs(redis.call('ZRANGE', shard.root .. ':workers', 0, -1)) do
    for first = 1, #ids, bounds.COMMAND_VALUES do
      local last = math.min(first + bounds.COMMAND_VALUES - 1, #ids)
      local own = commands.try('HMGET', shard.key('held', worker), unpack(ids, first, last)) or {}
      for i = first, last do loaded[ids[i]] = own[i - first + 1] or loaded[ids[i]] end
    end
  end
end

-- The hold of a job whose record does not say who has it, or nil.
function holds.find(id)
  if loaded[id] ~= nil then return loaded[id] or nil end
  for _, worker in ipairs(redis.call('ZRANGE', shard.root .. ':workers', 0, -1)) do
    local hold = commands.try('HGET', shard.key('held', worker), id)
    if hold then return hold end
  end
  return nil
end

-- All that a worker holds, the longest held first: id, time, place, and the hold itself.
function holds.list(worker)
  local list, all = {}, commands.try('HGETALL', shard.key('held', worker)) or {}
  for i = 1, #all, 2 do
    local id, hold = all[i], all[i + 1]
    if string.sub(id, 1, 1) ~= '#' then list[#list + 1] = { id = id, time = Hold.time(hold), place = Hold.place(hold), hold = hold } end
  end
  table.sort(list, Hold.is_older)
  return list
end

-- Sends who holds a job a message, which an idle worker reads at once and a busy one within a quarter second.
function holds.tell_holder(token, message, now)
  local control = shard.key('control', Hold.worker_of(token))
  commands.try('ZADD', control, now, message)
  redis.call('PEXPIRE', control, bounds.MESSAGES_MS)
end

-- Asks who holds a job to cancel it: by a message, and by a mark in the hold, which the next renewal finds.
function holds.ask_holder(id, token, now)
  local worker = Hold.worker_of(token)
  if not worker then return end
  local hold = holds.read(id, token)
  if hold then redis.call('HSET', shard.key('held', worker), id, string.sub(hold, 1, 6) .. 'c' .. string.sub(hold, 8)) end
  holds.tell_holder(token, 'cancel:' .. id, now)
end
