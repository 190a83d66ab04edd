-- Trees: jobs that wait for others, and what follows from the end of one.
--
--   waiting-children -> waiting (all it needs have ended) -> active -> ended
--   active -> waiting-children (it added children and waits for them: `checkpoint.lua`)
--
-- `needs:<id>` is the exact set of what a job still waits for, `feeds:<id>` lists who waits for it,
-- `members:<root>` whom a tree has, `done:<root>` those that completed, in that order. What must hold:
-- - a job goes on exactly when its set becomes empty: a member leaves a set once, however often it is told;
-- - the end of a job and all that follows from it are one call, or a chore written in that call;
-- - once a root is marked (`stopping.lua`), nothing of its tree starts: every claim looks at the mark.
-- Crash windows, each a whole call or none of it: `graph-half-added` (no root is open before its last
-- chunk; an unopened one goes after a minute), `ended-not-told` (a chore tells), `stop-half-swept` (a
-- chore sweeps on, and claims cancel what it has not reached).
local OPEN = { waiting = true, delayed = true, parked = true, ['waiting-children'] = true, active = true }
local KEY_TTL = 86400000 -- of a key whose root ends without a worker of its queue
local released = {} -- queue -> records that go to ready
local removed = {} -- what `remove` takes away when all are told
local marks = {} -- root -> cause of its stop; '' without one, 'gone' without a record
local parents, bodies = {}, {} -- root -> the tree that it is part of, and what it was given if that is small
local stop_tree, sweep -- in `stopping.lua`

local function mark_of(tree)
  if not marks[tree] then
    local v = try('HMGET', job_root .. tree, 'stop', 'state', 'root', 'body') or {}
    marks[tree] = v[1] or v[2] and '' or 'gone'
    parents[tree], bodies[tree] = v[3], v[4] ~= '' and v[4]
  end
  return marks[tree]
end

-- The mark of a tree or of one that it is part of, nearest first.
local function find_mark(tree)
  while tree do
    local mark = mark_of(tree)
    if mark ~= '' then return mark end
    tree = parents[tree]
  end
  return ''
end

-- Puts a job that waits for nothing any more where it can be claimed.
local function release(id, now)
  local v = try('HMGET', job_root .. id, 'state', 'queue', 'order', 'lifo', 'stop')
  if not (v and v[1] and v[2]) then return quarantine(id, v and v[2] or nil, 'it waited in a tree', now) end
  if v[1] ~= 'waiting-children' then return end
  local record = v[5] and read_lease(id)
  if record and record.on ~= 'wake' then -- stopped, and nobody deals with it: it ends as its members made it end
    local is_removed = record.on == 'remove' and v[5] == 'failed'
    local state = v[5] == 'failed' and not is_removed and 'failed' or 'cancelled'
    record.is_removed = is_removed
    finish(id, record, state, try('GET', key('result', id)) or '', now, KEY_TTL)
    if is_removed then removed[#removed + 1] = id end
    return
  end
  gone[id] = nil
  push(released, v[2], { id = id, order = is_number(v[3]) and v[3] or MIDDLE, lifo = v[4] })
end

-- `id` needs `child` no more.
local function satisfy(id, child, now)
  local needs = key('needs', id)
  if try('SREM', needs, child) == 1 and redis.call('EXISTS', needs) == 0 then release(id, now) end
end
