--needs shard commands tables changes codec edges fields flag placing tree_leaves
--exports planting
-- Writing members of trees: their records, and who waits for whom.
-- An id that exists is a repeat: its row and its edges change nothing.
planting = {}
planting.has_deadlines = false -- one that became the earliest: a worker must hear of it

local rooted = {}

-- What is unusual about a member stands beside its record. Returns the flag that says so.
local function write_more(row)
  local more = {}
  local function set(field, value)
    if value ~= '' and value ~= 0 then more[#more + 1], more[#more + 2] = field, value end
  end
  set('on', row.on)
  set('up', row.up)
  set('tree', row.tree)
  set('priority', row.priority)
  set('due', row.due or '')
  if #more > 0 then redis.call('HSET', shard.key('more', row.id), unpack(more)) end
  return #more > 0 and FLAG.MORE or 0
end

-- A member may have no body of its own: then it is told what its root was given.
local function write_row(row, now)
  local record = { state = row.is_ready and 'waiting' or 'waiting-children', created = now, queue = row.queue }
  record.flags = write_more(row)
  if row.root ~= '' then record.root = row.root end
  fields.keep_body(record, row.id, row.body)
  redis.call('SET', shard.job_root .. row.id, codec.encode(record))
  if row.tree ~= '' then
    if not rooted[row.queue] then redis.call('SADD', shard.root .. ':rooted', row.queue) end
    rooted[row.queue] = true
    if row.timeout ~= '' then
      redis.call('ZADD', shard.root .. ':due', (row.due or now) + row.timeout, 'timeout:' .. row.id)
      planting.has_deadlines = planting.has_deadlines or redis.call('ZRANGE', shard.root .. ':due', 0, 0)[1] == 'timeout:' .. row.id
    end
  end
end

-- lists: ready (as `placing.flush` takes it), leaves (queue -> records), due (queues that got a delayed job).
-- Where the tree is not open yet its leaves are only noted, under who adds them.
function planting.write(rows, adder, is_open, lists, now)
  local members, feeds = {}, {}
  for _, row in ipairs(rows) do
    row.due = row.delay ~= '' and now + row.delay or nil
    if not row.is_known then
      row.is_ready = is_open and row.root ~= '' and not edges.is_fed[row.id] and not row.due
      write_row(row, now)
      if changes.is_on() then changes.note('added', row.queue, row.id, row.is_ready and 'waiting' or 'waiting-children') end
      if row.root ~= '' then tables.push(members, row.root, row.id) end
      if row.is_ready then
        placing.line_up(lists.ready, row.queue, row)
      elseif edges.is_fed[row.id] then
        commands.call_many('SADD', shard.key('needs', row.id), row.needs)
      elseif row.root == '' then -- a root; its call decides
      elseif is_open then
        tree_leaves.place(row, row.due, lists, now)
      else
        redis.call('RPUSH', shard.key('leaves', adder), row.id)
      end
      for _, edge in ipairs(row.feeds) do
        if edge[1] ~= row.id and not edge[3] then redis.call('SADD', shard.key('needs', edge[1]), edge[2]) end
        tables.push(feeds, edge[2], edge[1])
      end
    end
  end
  for tree, ids in pairs(members) do commands.call_many('RPUSH', shard.key('members', tree), ids) end
  for id, dependents in pairs(feeds) do commands.call_many('RPUSH', shard.key('feeds', id), dependents) end
end
