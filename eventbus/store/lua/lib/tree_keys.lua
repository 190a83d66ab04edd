--needs shard endings fields passed pointers records stopping trees
--exports tree_keys
-- Trees that are added in several calls, and their keys. Until its last chunk a tree is pending: nothing of it runs.
--
-- What must hold: nobody is told to wait for a tree that may never be whole. So whose key stands for a pending tree is
-- told to ask again, until that one is whole, and is joined then. Where its adder was not heard of for a moment, it may
-- have died: the tree is removed for the one that asks. Should its adder live, its next chunk is `gone`; it begins again,
-- and meets its key as anybody does. Of a pending tree that is removed nothing has run, and nobody is told of its end.
-- Crash windows: `adder-dies` (the next one with the key adds its own; without one it goes after a minute),
-- `adder-stalls` (both send on: the key stands for one of them, and the chunks of the other add nothing).
tree_keys = {}
local GOES = 60000 -- ms after the last chunk that was heard of
local STALE = 2000 -- ms after it in which its adder counts as alive: its chunks follow each other at once

function tree_keys.await_next(id, now)
  redis.call('ZADD', shard.root .. ':due', now + GOES, 'unopened:' .. id)
end

local function is_pending(id)
  local record = fields.fetch(id) or {}
  return record.pending and not record.stop
end

local function is_stale(id, now)
  local goes = redis.call('ZSCORE', shard.root .. ':due', 'unopened:' .. id)
  return not goes or math.abs(now + GOES - tonumber(goes)) > STALE -- also if the clock was set
end

-- Joins what the key stands for, if that is whole.
local function meet(tree, job, print, state, text)
  tree.is_idle = true
  if not state and is_pending(job) then
    tree.word = 'pending'
  else
    tree.word = print == tree.print and 'joined' or 'other'
    tree.job, tree.state, tree.text = job, state, text
  end
end

-- A tree that superseded another one, and is gone: its call is repeated, and its adder has to ask for the outcome.
local function answer_repeat(tree)
  tree.word, tree.is_idle, tree.job, tree.state = 'joined', true, tree.id, 'unlisted'
end

-- A chunk behind the first.
local function decide_next(tree)
  local record = fields.fetch(tree.id) or {}
  tree.word = (record.stop or not record.pending) and not tree.rows[1].is_known and 'gone' or 'new'
  tree.is_idle = tree.word == 'gone' or not record.pending
end

-- What becomes of a tree, or of a chunk of one, that a call brings. Writes nothing.
function tree_keys.decide(tree, now)
  if not tree.is_first then return decide_next(tree) end
  local first = tree.rows[1]
  tree.word, tree.is_idle = 'new', first.is_known and not (fields.fetch(tree.id) or {}).pending
  if first.is_known or tree.key == '' then return end
  tree.pointer = shard.key('key', first.queue .. ':' .. tree.key)
  local is_planned = pointers.planned[tree.pointer]
  local job, print, state, text, seen = pointers.follow(tree.pointer, tree.meeting)
  if tree.meeting == pointers.SUPERSEDE then
    if seen and passed.is_known(seen, tree.id) then return answer_repeat(tree) end
    seen = passed.add(seen or '', tree.id, true)
  end
  tree.seen = seen
  if job and tree.meeting == pointers.SUPERSEDE then
    tree.superseded = job
  elseif job and not state and not is_planned and is_pending(job) and is_stale(job, now) then
    tree.taken = job
  elseif job then
    meet(tree, job, print, state, text)
  end
  if not tree.is_idle then pointers.planned[tree.pointer] = { job = tree.id, print = tree.print, seen = seen } end
end

-- Removes a pending tree for another one that has its key now.
function tree_keys.give_way(id, now)
  local record = records.read_lease(id)
  record.reply, record.joined, record.is_removed = nil, nil, true
  redis.call('DEL', shard.key('needs', id))
  stopping.end_pending(id)
  endings.write(id, record, 'cancelled', '{"type":"JobCancelled"}', now, 0)
  trees.removed[#trees.removed + 1] = id
end
