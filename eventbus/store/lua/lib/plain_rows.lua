--needs shard args commands tables changes handing plain refusing rooting waking
--exports plain_rows
-- The short way of emissions that ask for nothing but perhaps a reply, into queues without groups
-- or limits. Most emissions are such; a job costs no command of its own here, but its share of two batches.
plain_rows = {}
local FIELDS = 4 -- of a row
local MOST = 1000 -- jobs of one call

-- What stands before the bodies in the records of a queue, for each kind of row.
local function make_heads(emitter, now)
  local heads = {}
  return function(queue, has_reply, has_body)
    local kind = (queue.are_roots and 4 or 0) + (has_reply and 2 or 0) + (has_body and 1 or 0)
    local own = heads[queue.name] or {}
    heads[queue.name] = own
    own[kind] = own[kind] or plain.open(queue.name, has_reply and emitter or '', now, has_body, queue.are_roots)
    return own[kind]
  end
end

-- One command is question and write. A full server refuses it, also where it is a repeat, which is to be answered.
local function write_new(records, count)
  local is_new = redis.pcall('MSETNX', unpack(records))
  if is_new == 1 then return true end
  local names = {}
  for i = 0, count - 1 do names[i + 1] = shard.job_root .. args.values[args.at + i * FIELDS + 1] end
  return is_new ~= 0 and redis.call('EXISTS', unpack(names)) == 0 and redis.call('MSETNX', unpack(records)) == 1
end

-- The records and the bodies of all rows, as key, value pairs.
local function make_records(queues, count, emitter, now)
  local records, head_of, n = {}, make_heads(emitter, now), 0
  for i = 0, count - 1 do
    local row = args.at + i * FIELDS
    local id, queue, body, has_reply = args.values[row + 1], queues[args.values[row + 2]], args.values[row + 3], args.values[row + 4] == 1
    local name, is_small = shard.job_root .. id, #body <= plain.SMALL
    if not is_small then
      records[n + 1], records[n + 2] = shard.key('body', id), body
      body, n = struct.pack('>I4', #body), n + 2
    end
    records[n + 1], records[n + 2] = name, head_of(queue, has_reply, not is_small) .. body
    n = n + 2
  end
  return records
end

-- Places jobs, and lists those that are roots. Returns those that were refused.
local function place(lists, count, now)
  local refused, refuse = refusing.begin()
  for queue, ids in pairs(lists) do
    local length = commands.try('RPUSH', shard.key('ready', queue), unpack(ids))
    if changes.is_on() and length then changes.note_all('added', queue, ids, 'waiting') end
    if not length then
      for _, id in ipairs(ids) do refuse(id, now, queue, shard.key('ready', queue)) end
    elseif length == #ids then
      local pools = waking.list_pools(queue, now) -- it was empty; else who left something there wakes
      if count > 1 or not handing.give(pools, queue, ids[1], args.values[args.at + 3], now) then waking.wake_queue(queue, now, pools) end
    end
  end
  return refused
end

-- Returns whether it has added the rows; where one of them is known, which is a repeat, it has written nothing.
-- Where a queue cannot be written, its rows alone are refused: nothing of them stays.
function plain_rows.add(queues, count, emitter, now, answer)
  if count == 0 or count > MOST then return count == 0 end
  if not write_new(make_records(queues, count, emitter, now), count) then return false end
  local lists, roots = {}, {}
  for i = 0, count - 1 do
    local row = args.at + i * FIELDS
    local queue = queues[args.values[row + 2]]
    tables.push(lists, queue.name, args.values[row + 1])
    if queue.are_roots then roots[#roots + 1] = i end
  end
  local refused = place(lists, count, now)
  for _, i in ipairs(roots) do
    local row = args.at + i * FIELDS
    if not refused[args.values[row + 1]] then rooting.note(queues[args.values[row + 2]].name, args.values[row + 1], i, nil, now) end
  end
  rooting.flush(now)
  for i = 0, next(refused) and count - 1 or -1 do
    local id = args.values[args.at + i * FIELDS + 1]
    if refused[id] then refusing.tell(answer, i, id, refused[id]) end
  end
  return true
end
