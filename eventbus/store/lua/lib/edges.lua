--needs shard args tables fields records telling
--exports edges
-- Reading the rows and edges of members, before the first write of a call.
-- An id that exists is a repeat: its row and its edges change nothing.
edges = {}
edges.is_fed = {} -- jobs that need something by an edge of this call
edges.awaited_again = {} -- job -> rows that exist already, and that it is to need
local broken = {} -- job, and what it needs and will not get: that had failed or was cancelled before

-- Which of the rows exist already: mostly none, and one question tells.
local function note_known(rows)
  local names = {}
  for i, row in ipairs(rows) do names[i] = shard.job_root .. row.id end
  if #names == 0 or #names <= bounds.COMMAND_VALUES and redis.call('EXISTS', unpack(names)) == 0 then return end
  for i, row in ipairs(rows) do row.is_known = redis.call('EXISTS', names[i]) == 1 end
end

-- Reads the rows and edges of a call, before its first write.
function edges.read_rows(row_count, edge_count)
  local rows = {}
  for i = 1, row_count do
    rows[i] = {
      id = args.take(), root = args.take(), queue = args.take(), body = args.take(), priority = args.take(), delay = args.take(),
      on = args.take(), up = args.take(), tree = args.take(), timeout = args.take(), needs = {}, feeds = {},
    }
  end
  note_known(rows)
  local fresh = {}
  for _, row in ipairs(rows) do fresh[row.id] = not row.is_known end
  for _ = 1, edge_count do
    local row, job, needs = rows[args.take()], args.take(), args.take()
    if not row.is_known then
      local state = not fresh[needs] and (fields.peek(needs) or {}).state -- it may have ended before
      if state == 'failed' or state == 'cancelled' then broken[#broken + 1] = { job, needs } end
      local is_over = state == 'completed'
      if not is_over then
        edges.is_fed[job] = true
        if job == row.id then row.needs[#row.needs + 1] = needs end
      end
      row.feeds[#row.feeds + 1] = { job, needs, is_over }
    elseif needs == row.id then
      tables.push(edges.awaited_again, job, needs)
    end
  end
  return rows
end

-- Tells those whose needs had ended before.
function edges.tell_broken(now)
  for _, each in ipairs(broken) do
    local record = records.read_lease(each[2])
    if record then telling.tell_failure(each[1], { id = each[2], state = record.state, up = record.up }, now) end
  end
end
