-- Stopping a tree: one mark on its root, which every claim looks at, then a sweep in bounded steps.
--
--   root: waiting-children | waiting | delayed | parked -> waiting-children -> waiting, its activation undoes
--         active -> (settles) -> the same, unless its activation has acknowledged the mark (`checkpoint.lua`)
--
-- The first mark stays: its cause (failed | cancelled | timeout) and who made it (a member, a call).
-- From then on the root waits for those alone that still run: the sweep puts them into its `needs`,
-- where '' stands for the sweep itself; so none is missed and none is waited for twice. What nobody
-- runs ends as cancelled, untold: those who need it end the same way. Where the root's policy is not
-- `wake` there is nobody to undo anything, and it ends itself when none runs.
local to_sweep = 100 -- members that one call still looks at
local PLACES = { waiting = 'ready', delayed = 'delayed', parked = 'parked' }
local OPEN = { waiting = true, delayed = true, parked = true, ['waiting-children'] = true, active = true }

-- Takes a job that nobody runs out of the place where it waits.
local function take_out(id, record)
  local place = PLACES[record.state]
  if place then try('ZREM', place == 'delayed' and root .. ':delayed' or key(place, record.queue), id) end
end

-- A message for one worker, which reads it at once when it is idle, else within a quarter second.
local function tell_worker(token, message, now)
  local worker = string.match(token or '', '^[^+:]+')
  if not worker then return end
  try('ZADD', key('control', worker), now, message)
  redis.call('PEXPIRE', key('control', worker), 120000)
end

-- Ends a member that never ran, or was suspended; its dependents end by the same sweep.
local function drop_member(id, record, text, now)
  take_out(id, record)
  redis.call('DEL', key('needs', id))
  redis.call('HSET', job_root .. id, 'state', 'cancelled', 'ended', now, 'result', text)
  tell(id, record, 'cancelled', text)
end

local function stop_member(id, top, cause, now)
  local record = read_lease(id)
  if not record or not OPEN[record.state] or record.root ~= top then return end
  if record.tree then
    redis.call('SADD', key('needs', top), id)
    local why = cjson.encode({ type = 'JobCancelled', message = 'the tree that it is part of stops: ' .. top })
    stop_tree(id, 'cancelled', top, why, now)
  elseif record.state ~= 'active' then
    drop_member(id, record, '{"type":"JobCancelled","message":"its tree stopped"}', now)
  else
    redis.call('SADD', key('needs', top), id)
    if cause ~= 'failed' then
      redis.call('HSET', job_root .. id, 'cancel', top)
      tell_worker(record.token, 'cancel:' .. id, now)
    end
  end
end

function sweep(top, now)
  local v = try('HMGET', job_root .. top, 'stop', 'swept') or {}
  if not v[1] then return end
  local first, count = tonumber(v[2]) or 0, to_sweep
  local ids = count > 0 and try('LRANGE', key('members', top), first, first + count - 1) or {}
  to_sweep = count - #ids
  for _, id in ipairs(ids) do stop_member(id, top, v[1], now) end
  redis.call('HSET', job_root .. top, 'swept', first + #ids)
  if #ids == count then
    add_chore('stop', top, now)
  else
    satisfy(top, '', now)
  end
end

-- Returns whether this call made the mark; `text` is the outcome of a root that nobody wakes, or the
-- error of the root's own activation.
function stop_tree(top, cause, by, text, now)
  local record = read_lease(top)
  if not record or not OPEN[record.state] or record.stop then return false end
  redis.call('HSET', job_root .. top, 'stop', cause, 'stopper', by)
  redis.call('SET', key('result', top), text)
  marks[top] = cause
  if record.state ~= 'active' then
    take_out(top, record)
    redis.call('HSET', job_root .. top, 'state', 'waiting-children')
  elseif cause ~= 'failed' then
    tell_worker(record.token, 'cancel:' .. top, now)
  end
  redis.call('DEL', key('needs', top))
  redis.call('SADD', key('needs', top), '')
  sweep(top, now)
  return true
end

-- What becomes of a root that settles while it is marked, before its activation knew: it runs again, to undo.
local function settle_stopped_root(id, now)
  redis.call('HSET', job_root .. id, 'state', 'waiting-children')
  if redis.call('EXISTS', key('needs', id)) == 0 then release(id, now) end
end
