-- Telling those who need a member that it ended, at once or by a chore.
local to_tell = 200 -- dependents that one call tells; the rest is a chore

-- The text of what ended without completing, as its dependents and waiters hear it.
local function describe_failure(id, state)
  local text = 'child ' .. id .. ' ' .. (state == 'failed' and 'failed' or 'was cancelled')
  local own = try('HGET', job_root .. id, 'result') or try('GET', key('result', id))
  local is_json, error = pcall(cjson.decode, own or '')
  if is_json and type(error) == 'table' and error.message then text = text .. ': ' .. tostring(error.message) end
  return cjson.encode({ type = 'ChildFailed', message = text })
end

-- One dependent of a job that did not complete: its own policy decides, or the child's for it.
local function tell_failure(dependent, each, now)
  local v = try('HMGET', job_root .. dependent, 'state', 'queue', 'on', 'tree', 'reply', 'joined', 'key', 'root', 'up') or {}
  if v[1] ~= 'waiting-children' or not v[2] then return end
  local policy = each.up or v[3] or 'fail'
  local top = v[4] and dependent or v[8]
  if policy == 'ignore' then
    satisfy(dependent, each.id, now)
  elseif policy == 'wake' and not v[4] then
    redis.call('DEL', key('needs', dependent))
    release(dependent, now)
  elseif v[4] or policy == 'fail' and try('HGET', job_root .. top, 'on') == 'wake' then
    stop_tree(top, 'failed', each.id, describe_failure(each.id, each.state), now)
  else
    local record = { queue = v[2], reply = v[5], joined = v[6], key = v[7], root = v[8], up = v[9] }
    redis.call('DEL', key('needs', dependent))
    finish(dependent, record, policy == 'remove' and 'cancelled' or 'failed', describe_failure(each.id, each.state), now, KEY_TTL)
    if policy == 'remove' then removed[#removed + 1] = dependent end
  end
end

local function tell_one(each, now)
  if mark_of(each.root) ~= '' then return satisfy(each.root, each.id, now) end
  local feeds = key('feeds', each.id)
  local dependents = to_tell > 0 and try('LRANGE', feeds, 0, to_tell - 1) or {}
  for _, dependent in ipairs(dependents) do
    if each.state == 'completed' then
      satisfy(dependent, each.id, now)
    else
      tell_failure(dependent, each, now)
    end
  end
  to_tell = to_tell - #dependents
  if #dependents > 1 or to_tell <= 0 then
    redis.call('LTRIM', feeds, #dependents, -1)
    if redis.call('EXISTS', feeds) == 1 then add_chore('tell', each.id, now) end
  end
end

-- Tells all, also those that end by it; what goes on is put into `ready`.
local function flush_tells(ready, now)
  local i = 1
  while tells[i] do
    tell_one(tells[i], now)
    i = i + 1
  end
  requeue(released, ready)
  if #removed > 0 then forget(removed, now) end
  released, tells, removed = {}, {}, {}
end

-- For calls that are no turn: somebody must take the turn that goes on with what they left. The root's
-- queue is served where there is a worker for it; the others look each 4 seconds.
local function wake_chores(now)
  if not has_chores then return end
  for tree in pairs(marks) do
    local queue = try('HGET', job_root .. tree, 'queue')
    if queue then wake(queue, now) end
  end
end
