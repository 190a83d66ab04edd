--needs shard commands book candidate candidates hold
--exports claims
-- Claiming: choosing and reading come first, then the moves.
-- A move writes the hold and then cuts the entry; nothing is popped, so nothing can be lost between two commands.
claims = {}
local AHEAD = 400 -- entries that one call reads past those that it asked for: so many tombstones it drops at most

local function begin_plan()
  return {
    ids = {}, rows = {}, odd = {}, stopped = {}, foreign = {}, named = {}, more = {}, lines = {}, has_more = {},
    watched = {}, lonely = {}, journals = {}, places = {}, lanes = {}, moves = {},
    budget = { left = AHEAD },
  }
end

-- Chooses at most `count` jobs of a line; `bytes` of bodies are left for all, but one job may always be taken.
local function take_from(plan, line, count, bytes, choose_other)
  while line.seen - line.dropped < count and (bytes > 0 or not plan.ids[1])
    and (line.records[line.seen + 1] ~= nil or candidates.read_on(line, plan.budget)) do
    line.seen = line.seen + 1
    bytes = bytes - (candidate.choose(plan, line, line.seen) or choose_other('one', plan, line, line.seen))
  end
  local has_more = line.ids[line.seen + 1] or candidates.is_open(line) and (candidates.read_on(line, plan.budget) or candidates.is_open(line))
  plan.has_more[line.index] = plan.has_more[line.index] or has_more
  return bytes
end

-- Suspects come last; but one call of eight asks for them first, so that a long line does not keep them for ever. Where
-- nothing is left for them, somebody asks again. In most calls no queue has any.
-- room: as `suspects.lua` has it.
local function ask_suspects(plan, queues, want, bytes, room, choose_other)
  for _, queue in ipairs(room.left > 0 and queues or {}) do
    if queue.quota > 0 and bit.band(queue.flags, book.SUSPECTS) ~= 0 then
      return choose_other('suspects', plan, queues, want, bytes, room)
    end
  end
  return bytes
end

-- Jobs of lanes: half of the calls ask for them before the others, half behind them. Few queues have any.
-- Where nothing is left for them, `take` only says that they are there.
local function ask_lanes(plan, queues, want, bytes, room, choose_other)
  local asked, laned = 0, {}
  for _, queue in ipairs(queues) do
    if queue.quota > 0 then asked = asked + 1 end
    if queue.quota > 0 and bit.band(queue.flags, book.BY_KEY) ~= 0 then laned[#laned + 1] = queue end
  end
  for i, queue in ipairs(laned) do
    local part = math.ceil(math.max(0, want - #plan.ids) / (room.has_lanes_first and asked or #laned + 1 - i))
    bytes = choose_other('lanes', plan, queue, part, bytes, room.now, take_from, choose_other)
  end
  return bytes
end

-- At most `want` jobs and `bytes` of bodies, but always one job.
-- choose_other: its first argument says what it does: `suspects.take`, `turns.take` (lanes) or `unusual.choose` (one).
function claims.read(queues, want, bytes, room, choose_other)
  local plan = begin_plan()
  if want <= 0 then return plan end
  if room.is_first then bytes = ask_suspects(plan, queues, want, bytes, room, choose_other) end
  -- Who makes room for a suspect claims nothing beside it, else its slots would be taken for as long as these jobs run.
  local is_reserved = plan.is_alone or plan.lonely[1] and room.watched == 0 and not plan.watched[1]
  if room.has_lanes_first or is_reserved then bytes = ask_lanes(plan, queues, is_reserved and 0 or want, bytes, room, choose_other) end
  local lines, counts = candidates.read_lines(plan, queues, is_reserved and 0 or want - #plan.ids)
  candidates.read_records(lines, counts)
  for i, line in ipairs(lines) do
    bytes = take_from(plan, line, counts[i], bytes, choose_other)
    queues[line.index].taken = (queues[line.index].taken or 0) + line.seen - line.dropped
  end
  if not (room.has_lanes_first or is_reserved) then bytes = ask_lanes(plan, queues, want, bytes, room, choose_other) end
  if not room.is_first then ask_suspects(plan, queues, want - #plan.ids, bytes, room, choose_other) end
  for _, queue in ipairs(queues) do
    if plan.has_more[queue.index] then plan.more[#plan.more + 1] = queue.index end
  end
  candidate.add_bodies(plan, queues)
  return plan
end

local FLAGS = { ['ready+'] = book.PLUS, suspects = book.SUSPECTS } -- what the book says of these

-- Cuts what was seen: the first entries of each part of a line.
function claims.remove(plan)
  for _, line in ipairs(plan.lines) do
    local first, left = 0, line.seen
    for i, part in ipairs(line.parts) do
      local count = math.min(left, line.counts[i])
      if count > 0 and part[2] then
        commands.call_many('ZREM', shard.key(part[1], line.place), { unpack(line.ids, first + 1, first + count) })
      elseif count > 0 then
        redis.call('LTRIM', shard.key(part[1], line.place), count, -1)
      end
      first, left = first + line.counts[i], left - count
      local flag = FLAGS[part[1]]
      if flag and redis.call('EXISTS', shard.key(part[1], line.queue)) == 0 then book.clear(line.queue, flag) end
    end
  end
end

-- Of most jobs no record is written: the hold says it all. name_holder: of those whose record names who holds them.
function claims.write(plan, held, token, now, name_holder)
  if not plan.ids[1] then return end
  local fields = {}
  for i, id in ipairs(plan.ids) do
    if plan.named[id] then name_holder(id, plan.named[id], token, now) end
    fields[2 * i - 1], fields[2 * i] = id, Hold.make(token, now, i)
  end
  for i, place in pairs(plan.places) do fields[2 * i] = fields[2 * i] .. place end
  commands.call_many('HSET', held, fields)
end

-- Takes the wakes of the pool, for a worker that wants jobs, and puts back those of queues in which it left some.
function claims.exchange_wakes(pool, want, more, queues, now)
  local wakes, woken = shard.key('wake', pool), {}
  local popped = want > 0 and commands.try('ZPOPMIN', wakes, 32) or {}
  for i = 1, #popped, 2 do woken[#woken + 1] = popped[i] end
  for _, index in ipairs(more) do commands.try('ZADD', wakes, now, queues[index].name) end
  if #more > 0 then redis.call('PEXPIRE', wakes, bounds.MESSAGES_MS) end
  return woken
end
