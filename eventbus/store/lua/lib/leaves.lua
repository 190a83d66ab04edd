-- Leaves: the members of a tree that need nothing, and so begin it.
local OPENED = 500 -- leaves that one call makes ready; the rest is a chore

-- Puts members that need nothing where they can be claimed.
local function place_leaf(id, queue, order, due, lists, now)
  if due and due > now then
    redis.call('HSET', job_root .. id, 'state', 'delayed')
    redis.call('ZADD', root .. ':delayed', due, id)
    lists.due[queue] = true
  else
    push(lists.leaves, queue, { id = id, order = order })
  end
end

-- Makes the noted leaves of an opened tree ready, in bounded steps.
local function open_leaves(tree, ready, now)
  local name = key('leaves', tree)
  local ids = try('LRANGE', name, 0, OPENED - 1) or {}
  if #ids == 0 then return end
  local lists = { leaves = {}, due = {} }
  for _, id in ipairs(ids) do
    local v = try('HMGET', job_root .. id, 'state', 'queue', 'order', 'due') or {}
    if v[1] == 'waiting-children' then place_leaf(id, v[2], v[3], tonumber(v[4]), lists, now) end
  end
  requeue(lists.leaves, ready)
  redis.call('LTRIM', name, #ids, -1)
  if redis.call('EXISTS', name) == 1 then add_chore('open', tree, now) end
end
