-- Writing members of trees: their records, and who waits for whom.
-- An id that exists is a repeat: its row and its edges change nothing.
local has_deadlines = false -- one that became the earliest: a worker must hear of it

-- Reads the rows and edges of a call, before its first write.
local function read_rows(row_count, edge_count)
  local rows = {}
  for i = 1, row_count do
    rows[i] = {
      id = take(), root = take(), queue = take(), body = take(), priority = take(), delay = take(),
      on = take(), up = take(), tree = take(), timeout = take(), needs = {}, feeds = {},
    }
    rows[i].is_known = redis.call('EXISTS', job_root .. rows[i].id) == 1
  end
  for _ = 1, edge_count do
    local row, job, needs = rows[take()], take(), take()
    if not row.is_known then
      if job == row.id then row.needs[#row.needs + 1] = needs end
      row.feeds[#row.feeds + 1] = { job, needs }
    end
  end
  return rows
end

local function write_row(row, now)
  local fields = { 'queue', row.queue, 'state', 'waiting-children', 'order', score_of(row.priority, 0), 'created', now }
  local n = #fields
  local function set(field, value)
    if value == '' then return end
    fields[n + 1], fields[n + 2] = field, value
    n = n + 2
  end
  set('root', row.root)
  set('on', row.on)
  set('up', row.up)
  set('tree', row.tree)
  row.due = row.delay ~= '' and now + row.delay or nil
  if row.due then set('due', row.due) end
  if #row.body <= FIELD then set('body', row.body) else redis.call('SET', key('body', row.id), row.body) end
  redis.call('HSET', job_root .. row.id, unpack(fields))
  if row.tree ~= '' then
    redis.call('SADD', root .. ':rooted', row.queue)
    if row.timeout ~= '' then
      redis.call('ZADD', root .. ':deadlines', (row.due or now) + row.timeout, 'timeout:' .. row.id)
      has_deadlines = has_deadlines or redis.call('ZRANGE', root .. ':deadlines', 0, 0)[1] == 'timeout:' .. row.id
    end
  end
end

-- lists: leaves (queue -> records), due (queues that got a delayed job). Where the tree is not open yet its
-- leaves are only noted.
local function plant(rows, is_open, lists, now)
  local members, feeds = {}, {}
  for _, row in ipairs(rows) do
    if not row.is_known then
      write_row(row, now)
      if row.root ~= '' then push(members, row.root, row.id) end
      if #row.needs > 0 then
        call_many('SADD', key('needs', row.id), row.needs)
      elseif row.root == '' then -- a root; its call decides
      elseif is_open then
        place_leaf(row.id, row.queue, score_of(row.priority, 0), row.due, lists, now)
      else
        redis.call('RPUSH', key('leaves', row.root), row.id)
      end
      for _, edge in ipairs(row.feeds) do
        if edge[1] ~= row.id then redis.call('SADD', key('needs', edge[1]), edge[2]) end
        push(feeds, edge[2], edge[1])
      end
    end
  end
  for tree, ids in pairs(members) do call_many('RPUSH', key('members', tree), ids) end
  for id, dependents in pairs(feeds) do call_many('RPUSH', key('feeds', id), dependents) end
end
