--needs shard commands changes hold idle outcomes
--exports handing
-- Handing over: the call that adds a lone job gives it to an idle worker at once, so that it costs no claim. The job
-- travels in the message that ends the worker's blocked read.
--
--   added -> handed: held, with `hand:` in `due` -- the worker reads, and cuts `hand:` --> held, as if it had been claimed
--                                                -- 1.5 s ----> given back, and claimed by whoever is there
--
-- A worker that a turn leaves with nothing says that it is idle (`idle.lua`). That is good for one job: the next one
-- goes the ordinary way, until the worker says so again. So a busy worker is given its jobs in large calls, as ever.
-- A job is handed over only if its call adds no other, its queue was empty, and nothing about the queue is unusual.
--
-- What must hold: the hold, the message and `hand:` are written by one call; a job is handed over once at most, so that
-- its token is the only one of its kind; `hand:` is cut by a confirmation, and then its lease keeps the job like any
-- other, or by a call that gives the job back and removes the hold, which is no stall, for the worker goes on with
-- nothing that it cannot confirm. Its renewal and its leave confirm too. So a worker whose own confirmation finds no
-- `hand:` asks for the hold.
-- Crash windows:
--   `handed-to-dead`          the worker died, hangs or cannot be reached: it confirms nothing. 1.5 s later a turn of any
--                             worker gives the job back. If the worker reads of it then, it finds `hand:` cut, and lets go
--   `handed-message-lost`     it was read on a connection that was lost: the same
--   `confirmation-lost`       the worker runs the job; it confirms again before it reads again, and by its next renewal.
--                             If a turn gives the job back before, it runs twice, and the worker learns of that
--                             by its renewal
--   `confirmed-by-another`    a renewal or the leave has cut `hand:` before the worker does: its hold says that it has the job
--   `handed-while-stopping`   the call by which the worker leaves names what it has, which confirms it, and gives back the
--                             rest; and so does the worker with what it reads after that
--   `handed-then-died`        the lease runs out, and the job is rescued
--   `handed-too-many`         the worker has claimed others meanwhile and has no slot left: it gives the job back
-- Rejected: a confirmation by the lease thread at 0.5 s. It costs nothing for short jobs, but a handler that keeps all
-- threads of its process waiting would lose its job after 1.5 s instead of a lease.
local PATIENCE = bounds.HANDED_MS -- ms within which the worker must confirm
local JOB = 'job:'
local MESSAGES = 1000 -- that a worker may have, of those looked at

handing = {}

-- Hands a job to a worker. Returns whether that could be done.
local function hand_to(worker, queue, id, body, now)
  local held, control = shard.key('held', worker), shard.key('control', worker)
  if not commands.try('HGET', held, '#') then return false end
  if not commands.try('ZADD', control, 0, table.concat({ JOB .. id, queue, commands.whole(now), body }, '\n')) then return false end
  redis.call('PEXPIRE', control, bounds.MESSAGES_MS)
  redis.call('HSET', held, id, Hold.make(worker .. ':h', now, 1))
  redis.call('ZADD', shard.root .. ':due', now + PATIENCE, Hold.entry_of_hand(worker, id))
  return true
end

-- queue: it has this one job alone. Returns whether a worker has the job now.
function handing.give(pools, queue, id, body, now)
  if #body > outcomes.INLINE or string.find(id, '\n', 1, true) or redis.call('HGET', KEYS[1], queue) then return false end
  for _, pool in ipairs(pools) do
    local worker = idle.take(pool, now)
    if worker and hand_to(worker, queue, id, body, now) then
      redis.call('LPOP', shard.key('ready', queue))
      if changes.is_on() then
        changes.note('claimed', queue, id, 'active', { worker = worker, attempt = 1 })
        changes.note_drained(queue)
      end
      return true
    end
  end
  return false
end

-- Whether a hold is of a job that its worker has not confirmed.
function handing.is_open(worker, hold)
  return Hold.is_handed(hold.hold) and redis.call('ZSCORE', shard.root .. ':due', Hold.entry_of_hand(worker, hold.id)) ~= false
end

-- Takes back what was handed to the worker, whatever of it has reached the worker.
function handing.withdraw(worker, ids)
  local asked = {}
  for _, id in ipairs(ids) do
    asked[id] = true
    redis.call('ZREM', shard.root .. ':due', Hold.entry_of_hand(worker, id))
  end
  for _, message in ipairs(commands.try('ZRANGE', shard.key('control', worker), 0, MESSAGES - 1) or {}) do
    if asked[string.match(message, '^' .. JOB .. '([^\n]*)\n')] then redis.call('ZREM', shard.key('control', worker), message) end
  end
end
