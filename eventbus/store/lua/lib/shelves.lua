--needs shard commands book entry fields holds lanes lines placing putting_off records
--exports shelves
-- Shelves: where jobs stand that a worker claimed and must not run now, because a part of their queue is paused: a step of
-- a workflow. A shelf is a paused queue that nobody needs to serve. `home` in its hash (`orders.lua`) is the queue from which its
-- jobs come, whose flag SHELVED says that it has shelves.
--   claimed in its home -> `shelved` -> waits on the shelf -> the shelf is resumed: waits in its home again
-- Where workers serve the shelf, because the step got a limit meanwhile, jobs of its own stand there, too. Then all stay, and
-- keep to the limit; what is left once nobody serves it goes home.
-- What must hold: a job is put on a shelf only in a call that sees that the shelf is paused; in any other case it is given
-- back (`settle_rows.lua`). So what stands on a shelf that is not paused is older than its resume, and goes home by the calls of the resume.
-- Crash window: `resumer-dies` (the rest goes home with the announcements of who serves the home, and so does what
-- somebody delayed there, once it is due).
local MOST = bounds.CALL_ROWS -- jobs of one call

shelves = {}

-- These entries of one line of a shelf go home. Returns how many of its entries were tombstones.
local function take_entries(name, entries, shelf, home, ready)
  local ids, dead = {}, 0
  for i, entry in ipairs(entries) do ids[i] = Entry.job(entry) end
  holds.load(ids)
  for i, id in ipairs(ids) do
    local record = records.read(id)
    local waits = record and record.state == 'waiting' and record.queue == shelf and not holds.find(id)
    if waits and (name == shard.key('ready+', shelf) or Entry.of(id, record) == entries[i]) then
      record.id = id
      fields.change(id, 'queue', home)
      placing.line_up(ready, home, record)
    else
      dead = dead + 1
    end
  end
  return dead
end

-- What a list of a shelf has at its head goes home. Returns how many entries these were.
local function cut_list(name, queue, home, room, ready)
  local entries = room > 0 and commands.try('LRANGE', name, 0, room - 1) or {}
  lines.drop_dead(queue, take_entries(name, entries, queue, home, ready))
  if entries[1] then redis.call('LTRIM', name, #entries, -1) end
  return #entries
end

-- A shelf on which nothing waits is one no more, unless somebody delayed a job there, which waits again once it is due.
-- Returns how many jobs wait.
local function close_empty(queue)
  local left = lines.count(queue)
  if left == 0 and (commands.try('ZCARD', shard.key('delayed', queue)) or 0) == 0 then redis.call('HDEL', shard.key('limits', queue), 'home') end
  return left
end

-- Moves what waits on a shelf that is not paused to its home, some of it in each call.
-- Returns how many jobs are left to move: none where workers serve the shelf.
function shelves.take_home(queue, home, now)
  if redis.call('EXISTS', shard.key('pools', queue)) == 1 then
    close_empty(queue)
    return 0
  end
  local room, ready = MOST, {}
  for _, kind in ipairs({ 'suspects', 'ready' }) do
    room = room - cut_list(shard.key(kind, queue), queue, home, room, ready)
  end
  local keys = lanes.list(queue)
  for _, lane in ipairs(keys) do
    local count = cut_list(lanes.key_of(queue, lane), queue, home, room, ready)
    lanes.cut(queue, lane, count)
    room = room - count
  end
  if keys[1] then lanes.close(queue) end
  local name = shard.key('ready+', queue)
  local ranked = room > 0 and commands.try('ZRANGE', name, 0, room - 1) or {}
  take_entries(name, ranked, queue, home, ready)
  commands.call_many('ZREM', name, ranked)
  placing.flush(ready, now, putting_off.put_off)
  return close_empty(queue)
end

-- Goes on where somebody who resumed shelves of this queue has died. Returns the shelves from which jobs went home.
function shelves.take_resumed(home, now)
  local moved, has_shelves = {}, false
  for _, shelf in ipairs(redis.call('SMEMBERS', shard.root .. ':limited')) do
    local known = redis.call('HMGET', shard.key('limits', shelf), 'home', 'paused')
    if known[1] == home then
      has_shelves = true
      if not known[2] then
        shelves.take_home(shelf, home, now)
        moved[#moved + 1] = shelf
      end
    end
  end
  if not has_shelves then book.clear(home, book.SHELVED) end
  return moved
end
