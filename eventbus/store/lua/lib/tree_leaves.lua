--needs shard commands tables changes chore_list delays fields placing putting_off records trees waking
--exports tree_leaves
-- Leaves: the members of a tree that need nothing, and so begin it.
tree_leaves = {}
local to_open = 500 -- leaves that one call makes ready; the rest is a chore

-- Puts a member that needs nothing where it can be claimed. leaf: its id, queue and priority.
function tree_leaves.place(leaf, due, lists, now)
  if due and due > now then
    fields.change(leaf.id, 'state', 'delayed')
    if changes.is_on() then changes.note('delayed', leaf.queue, leaf.id, 'delayed', { due = due }) end
    delays.place({ [leaf.queue] = { due, leaf.id } }, now, putting_off.set_apart)
    lists.due[leaf.queue] = true
  else
    tables.push(lists.leaves, leaf.queue, { id = leaf.id, priority = leaf.priority })
  end
end

-- Makes the noted leaves of an opened tree ready, in bounded steps.
-- `adder`: the root, or the job that added them as its children.
function tree_leaves.open(adder, ready, now)
  local name = shard.key('leaves', adder)
  local ids
  if to_open > 0 then
    ids = commands.try('LRANGE', name, 0, to_open - 1)
  else
    ids = commands.try('LLEN', name) and {}
  end
  if not ids then
    local record = records.read_lease(adder)
    return record and trees.break_tree(record.tree and adder or record.root, adder, 'leaves', adder, now)
  end
  to_open = to_open - #ids
  local lists = { leaves = {}, due = {} }
  for _, id in ipairs(ids) do
    local record = fields.fetch(id)
    if record and record.state == 'waiting-children' and redis.call('EXISTS', shard.key('needs', id)) == 0 then
      record.id = id
      tree_leaves.place(record, tonumber(record.due), lists, now)
    end
  end
  placing.requeue(lists.leaves, ready)
  if #ids > 0 then redis.call('LTRIM', name, #ids, -1) end
  if (commands.try('LLEN', name) or 0) > 0 then chore_list.add('open', adder) end
  for queue in pairs(lists.due) do waking.wake_queue(queue, now) end
end
