--needs shard commands book entry
--exports candidates
-- The entries of queues that may be claimed, and the records of their jobs. Writes nothing.
-- A line is what one queue gives: its lists and sets one after the other, in the order of claims.
candidates = {}
local PLAIN = { { 'ready' } }
local RANKED = { { 'ready+', '-inf', '(0' }, { 'ready' }, { 'ready+', '0', '+inf' } }
local SUSPECTS, LANE = { { 'suspects' } }, { { 'lane' } }

-- queue: with its index among those of the call, and its flags.
local function begin_line(queue, of_suspects, lane)
  local parts = of_suspects and SUSPECTS or lane and LANE or bit.band(queue.flags, book.PLUS) ~= 0 and RANKED or PLAIN
  return {
    queue = queue.name, place = lane and queue.name .. ':' .. lane or queue.name, lane = lane, index = queue.index, quota = queue.quota - (queue.taken or 0), parts = parts, part = 1, counts = { 0, 0, 0 },
    ids = {}, entries = {}, records = {}, seen = 0, dropped = 0,
  }
end

-- Whether there may be more entries than were read.
function candidates.is_open(line)
  return line.parts[line.part] ~= nil
end

-- A member of a set is the job itself, and no tombstone. Mostly no entry of a list has a mark either.
local function add_entries(line, found, is_list)
  local ids, entries, n = line.ids, line.entries, #line.ids
  local is_marked = is_list and string.find(table.concat(found), '!', 1, true)
  for i, entry in ipairs(found) do
    ids[n + i], entries[n + i] = is_marked and Entry.job(entry) or entry, is_list and entry
  end
end

-- Reads up to `count` more entries.
local function read_entries(line, count)
  while count > 0 and candidates.is_open(line) do
    local part, read, found = line.parts[line.part], line.counts[line.part], nil
    if part[2] then
      found = commands.try('ZRANGEBYSCORE', shard.key(part[1], line.place), part[2], part[3], 'LIMIT', read, count)
    else
      found = commands.try('LRANGE', shard.key(part[1], line.place), read, read + count - 1)
    end
    line.is_foreign = line.is_foreign or not found
    add_entries(line, found or {}, not part[2])
    local more = #(found or {})
    line.counts[line.part] = read + more
    if more < count then line.part = line.part + 1 end
    count = count - more
  end
end

-- Begins a line in the plan of a claim. One entry more than may be taken is asked for, to see whether more is left.
function candidates.read_line(plan, queue, count, of_suspects, lane)
  local line = begin_line(queue, of_suspects, lane)
  read_entries(line, math.min(queue.quota, count) + 1)
  if line.is_foreign then plan.foreign[#plan.foreign + 1] = line.queue end
  plan.lines[#plan.lines + 1] = line
  return line
end

-- Shares out among lines that have more what is left when each has given its part.
function candidates.read_shares(lines, takes, left)
  for i, line in ipairs(lines) do
    local more = math.min(line.quota - takes[i], left)
    if more > 0 and #line.ids > takes[i] then
      read_entries(line, takes[i] + more + 1 - #line.ids)
      more = math.min(more, #line.ids - takes[i])
      takes[i], left = takes[i] + more, left - more
    end
  end
end

-- The lines of all queues, and how many jobs each gives: equal shares first, then what is left in order.
function candidates.read_lines(plan, queues, want)
  local lines, takes, left, asked = {}, {}, want, 0
  for _, queue in ipairs(queues) do
    if queue.quota > 0 then asked = asked + 1 end
  end
  local part = math.ceil(want / math.max(asked, 1))
  for _, queue in ipairs(queues) do
    if queue.quota > 0 then
      local line = candidates.read_line(plan, queue, part)
      lines[#lines + 1] = line
      takes[#lines] = math.min(part, line.quota, #line.ids, left)
      left = left - takes[#lines]
    end
  end
  candidates.read_shares(lines, takes, left)
  return lines, takes
end

-- Reads the records of the next entries of lines, `counts` of each: one command for all.
function candidates.read_records(lines, counts)
  local names, n = {}, 0
  for i, line in ipairs(lines) do
    for j = #line.records + 1, math.min(#line.ids, #line.records + counts[i]) do
      n = n + 1
      names[n] = shard.job_root .. line.ids[j]
    end
  end
  local texts, place = commands.get_all(names), 0
  for i, line in ipairs(lines) do
    local records = line.records
    for j = #records + 1, math.min(#line.ids, #records + counts[i]) do
      place = place + 1
      records[j] = texts[place]
    end
  end
end

-- The next entry, with its record: reads on behind tombstones, as far as the call may. budget: how many are left for it.
function candidates.read_on(line, budget)
  local i = line.seen + 1
  if line.records[i] ~= nil then return true end
  local count = math.min(50, budget.left)
  if not line.ids[i] and count > 0 then read_entries(line, count) end
  candidates.read_records({ line }, { count })
  budget.left = budget.left - count
  return line.records[i] ~= nil
end
