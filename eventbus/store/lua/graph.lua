-- Adds trees, each whole or in chunks: its root with the first, opened by the last.
-- Repeat-safe: ids are fresh, so one that exists is a repeat and changes nothing.
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now emitter attendance trees
-- trees: id is_first is_last key print meeting reply rows edges
--   is_first: the first of its rows is the root
-- rows: id root queue body priority delay on up tree timeout
--   root: of the tree that it is a member of, '' for the root of these | tree: 1 for a root, also a nested one
--   on: what becomes of it when a child fails, '' for fail | up: what its own failure does, '' as its parent says
--   delay, timeout: ms or ''; a timeout is from when the root is due
-- edges: row job needs
--   row: the place of one of the two among the rows
-- answer: now, then for each tree: word job state text
--   word: new | joined | other (joined, with another payload) | gone (no root to go on with) |
--     pending (another tree has its key, which is not whole yet: to be asked again)
--   state: open | unlisted (see `add.lua`) | completed | failed | cancelled, of what was joined, with its outcome
--include shard args commands guard floors fields joining placing trees stopping cancelling tree_leaves edges planting pointers tree_keys epilogue waking

local now = args.take_now()
local emitter, attendance, tree_count = args.take(), args.take(), args.take()
local answer, added = { now }, {}

for i = 1, tree_count do
  local tree = { id = args.take(), is_first = args.take() == 1, is_last = args.take() == 1, key = args.take(), print = args.take() }
  tree.meeting, tree.reply = args.take(), args.take() == 1
  local row_count, edge_count = args.take(), args.take()
  tree.rows = edges.read_rows(row_count, edge_count)
  tree_keys.decide(tree, now)
  added[i] = tree
end

floors.hold(attendance, now)
local ready = {}
local lists = { ready = ready, leaves = {}, due = {} }
local function join(tree)
  if tree.state then return end
  if not joining.add_emitter(tree.job, tree.reply and emitter or '') then tree.state = 'unlisted' end
end

local function write_root(tree)
  local first = tree.rows[1]
  commands.try('ZADD', shard.key('roots', first.queue), now, tree.id)
  if tree.reply then fields.change(tree.id, 'reply', emitter) end
  if tree.pointer then
    fields.change(tree.id, 'key', tree.key)
    pointers.point(tree.pointer, tree.id, tree.print, nil, tree.seen)
  end
  if not tree.is_last then fields.change(tree.id, 'pending', 1) end
end

-- The last chunk: from here on its leaves run; a root that needs nothing does at once.
local function open(tree)
  local first = tree.rows[1]
  if not tree.is_first then stopping.end_pending(tree.id) end
  tree_leaves.open(tree.id, ready, now)
  if redis.call('EXISTS', shard.key('needs', tree.id)) == 1 then return end
  if not tree.is_first then return trees.release(tree.id, now) end
  tree_leaves.place(first, first.due, lists, now)
end

for _, tree in ipairs(added) do
  if tree.job then join(tree) end
  if not tree.is_idle then
    planting.write(tree.rows, tree.id, tree.is_first and tree.is_last, lists, now)
    if tree.is_first and not tree.rows[1].is_known then write_root(tree) end
    if tree.is_last then open(tree) else tree_keys.await_next(tree.id, now) end
    if tree.taken then tree_keys.give_way(tree.taken, now) end
    if tree.superseded then
      local why = 'superseded by job ' .. tree.id .. ', which has the same key'
      cancelling.cancel(tree.superseded, tree.id, cjson.encode({ type = 'JobCancelled', message = why }), now, 0)
    end
  end
  local verdict = { tree.word, tree.job or tree.id, tree.job and (tree.state or 'open') or '', tree.text or '' }
  for _, value in ipairs(verdict) do answer[#answer + 1] = value end
end
placing.requeue(lists.leaves, ready)
edges.tell_broken(now)
epilogue.end_call(ready, now)
for queue in pairs(lists.due) do waking.wake_queue(queue, now) end
for _, tree in ipairs(planting.has_deadlines and added or {}) do waking.wake_queue(tree.rows[1].queue, now) end
return answer
