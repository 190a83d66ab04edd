-- A worker says that it is there, and which queues its pool serves; groups come to exist by it.
-- Takes parked jobs back when asked to: a worker that cannot run them parks them again.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now pool worker former unpark since facts queues left
--   former: the pool that it was in before it served more queues or fewer, or ''; left: the queues of that pool
--   since: what the first announcement of the worker was answered, '' in that one: a newer worker decides what is declared
--   facts: what the worker says of itself, field and value in turn (`roster.lua`)
-- queues: queue base group limit keeps
--   limit, keeps: the limit that the program declares, and how long it keeps what has ended, JSON (`orders.lua`), or ''
-- left: queue
-- answer: taken since was_known
--   taken: how many jobs were taken back | since: the server's time at the first announcement, ms; no clock of a worker counts
--   was_known: 0 if the server knew nothing of the worker: it is new, or the server has lost what it knew
--include shard args commands book changes codec guard placing records groups idle presence putting_off roster
--defer load_orders: orders shelves

local SILENCE = 120000
local now = args.take_now()
local pool, worker, former, unpark, since, facts, count, left_count = args.take(), args.take(), args.take(), args.take() == 1, args.take(), args.take(), args.take(), args.take()
if since == '' then since = now end
local queues, names, left, back, ids, taken = {}, {}, {}, {}, {}, 0
for i = 1, count do
  local queue = { name = args.take(), base = args.take(), group = args.take(), limit = args.take(), keeps = args.take() }
  queue.parked = unpark and commands.try('ZRANGE', shard.key('parked', queue.name), 0, 99) or {}
  for _, id in ipairs(queue.parked) do
    local record = records.read(id)
    if record and record.state == 'parked' and not record.is_later then
      record.id, taken = id, taken + 1
      placing.line_up(back, queue.name, record, true)
      ids[#ids + 1], ids[#ids + 2] = queue.name, id
    end
  end
  local refusal = queue.group ~= '' and groups.refuse(queue.base, queue.group)
  if refusal then return refusal end
  queues[i], names[i] = queue, queue.name
end
for i = 1, left_count do left[i] = args.take() end

local serving = shard.key('serving', pool)
redis.call('ZREMRANGEBYSCORE', serving, '-inf', commands.whole(now - SILENCE)) -- a full server lets it through
redis.call('ZREMRANGEBYSCORE', serving, commands.whole(now + SILENCE), '+inf') -- the clock was ahead then
redis.call('ZADD', serving, now, worker)
redis.call('PEXPIRE', serving, SILENCE)
idle.keep(worker, pool, now)
local was_known = roster.is_known(worker)
roster.note(worker, names, facts, since, now)
if former ~= '' then presence.leave(worker, former, left, now) end
for _, queue in ipairs(queues) do
  local pools = shard.key('pools', queue.name)
  if commands.try('ZREMRANGEBYSCORE', pools, '-inf', commands.whole(now - SILENCE)) then
    redis.call('ZADD', pools, now, pool)
    redis.call('PEXPIRE', pools, SILENCE)
  end
  if queue.group ~= '' then groups.add(queue.base, queue.group) end
end
local flags = book.read(names)
for i, queue in ipairs(queues) do
  if queue.limit ~= '' or queue.keeps ~= '' or bit.band(flags[i], book.LIMITED + book.KEEPS) ~= 0 then
    load_orders()
    orders.note_declared(queue.name, queue.limit, queue.keeps, since, now)
  end
end
for i, queue in ipairs(queues) do
  if bit.band(flags[i], book.SHELVED) ~= 0 then
    load_orders()
    for _, shelf in ipairs(shelves.take_resumed(queue.name, now)) do orders.note(shelf, now) end
  end
end
for i = 1, #ids, 2 do
  codec.set_waiting(ids[i + 1])
  if changes.is_on() then changes.note('released', ids[i], ids[i + 1], 'waiting') end
  redis.call('ZREM', shard.key('parked', ids[i]), ids[i + 1])
end
placing.flush(back, now, putting_off.put_off)
return { taken, since, was_known }
