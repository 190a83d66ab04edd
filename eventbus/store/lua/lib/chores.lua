--needs shard commands agenda endings fields giving_back lanes leaving promotion records retention stopping telling tree_leaves trees waking
--exports chores
-- What is due: delayed jobs of queues, deadlines of trees, and chores, which are the rest of work that was too much for
-- one call.
-- Any worker's turn does a bounded part of them, and is followed by another while some are left.
chores = {}
local CHORES = 20
local do_chore = {}

function do_chore.q(queue, now, ready)
  promotion.release_due(queue, now, ready)
end

-- A job that was handed over, and that its worker did not confirm in time: `<worker>/<job>`.
function do_chore.hand(name, now, ready)
  local worker, id = string.match(name, '^([^/]*)/(.*)$')
  if worker then giving_back.give_unconfirmed(worker, { id }, ready, now) end
end

function do_chore.stop(id, now)
  stopping.sweep(id, now)
end

function do_chore.timeout(id, now)
  stopping.stop_tree(id, 'timeout', 'timeout', '{"type":"FlowTimeout","message":"its deadline passed"}', now)
end

-- The time has come at which a job goes on, whatever else it waits for (`mixed_waits.lua`).
function do_chore.wake(id, now)
  local record = fields.fetch(id)
  local wakes = record and record.state == 'waiting-children' and tonumber(record.wakes)
  if not wakes then return end
  if wakes > now then return redis.call('ZADD', shard.root .. ':due', wakes, 'wake:' .. id) end
  redis.call('DEL', shard.key('needs', id))
  trees.release(id, now)
end

function do_chore.open(id, now, ready)
  tree_leaves.open(id, ready, now)
end

-- Goes on telling, behind those who were told.
function do_chore.tell(id)
  local record = records.read_lease(id)
  if not record or not record.root then return end
  endings.of_members[#endings.of_members + 1] = { id = id, root = record.root, state = record.state, up = record.up, told = tonumber(record.told) }
end

-- Goes on telling who joined a job that has ended.
function do_chore.hear(id)
  local record = records.read_lease(id)
  if not record or trees.OPEN[record.state] then return end
  endings.tell_waiters(id, record, record.state, fields.text_of(id, record))
end

-- A queue that had started as much as its rates allow may start again (`slots.lua`).
function do_chore.turn(queue, now)
  waking.wake_filled({ queue }, now)
end

-- A key that rested because of its rates may have jobs started again: `<key>/<queue>`.
function do_chore.lane(name, now)
  local lane, queue = string.match(name, '^([^/]*)/(.*)$')
  if lane and lanes.end_rests(queue, { lane }) then waking.wake_filled({ queue }, now) end
end

-- The time of finished jobs of a queue has come, or may have (`leaving.lua`).
function do_chore.leave(queue, now)
  leaving.sweep(queue, now)
end

function do_chore.forget(id)
  retention.forget({ id })
end

-- A tree whose adder died before the last chunk: nothing of it ran. Its key is free, and who joined is told.
function do_chore.unopened(id, now)
  local record = records.read_lease(id)
  if not record or record.pending ~= '1' or not trees.OPEN[record.state] then return end
  redis.call('DEL', shard.key('needs', id))
  record.is_removed = true
  endings.write(id, record, 'cancelled', '{"type":"JobCancelled","message":"it was not added whole: who added it died or lost the server"}', now, 0)
  trees.removed[#trees.removed + 1] = id
end

-- Returns whether schedules are due, which the worker of this turn has to fire.
function do_chore.schedules(_, now)
  return agenda.hand_out(now)
end

function chores.do_due(now, ready)
  local has_duty = false
  local found = redis.call('ZRANGEBYSCORE', shard.root .. ':due', '-inf', commands.whole(now), 'LIMIT', 0, CHORES)
  for _, entry in ipairs(found) do
    local kind, id = string.match(entry, '^(%a+):(.*)$')
    redis.call('ZREM', shard.root .. ':due', entry) -- first: it may come back
    local found_duty = do_chore[kind] and do_chore[kind](id, now, ready)
    has_duty = has_duty or kind == 'schedules' and found_duty
  end
  telling.flush(ready, now)
  return has_duty
end
