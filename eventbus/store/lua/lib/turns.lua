--needs shard commands candidates lanes limit_keys
--exports turns
-- Turns: a claim takes from lanes in rotation, at least TURN jobs of each key, as far as the limit of the queue for each
-- key allows; what it wants beyond that it takes from those that have more. So a key with a long lane delays another by a
-- turn, and a key that rests is not looked at.
-- What must hold: a key rests only while so many of its jobs run, or until the time of `lane:<key>/<queue>` in `due`; so
-- who gives a slot of it back, or does that chore, gives it turns again.
local TURN = 4
local LANES = 64 -- that one call looks at

turns = {}

-- The entries of lanes, and how many jobs each gives; as many lanes as it takes to have `want` jobs. Returns also whether
-- more keys have turns. So many names are read as give them in turns of TURN: where there are fewer keys, each gives more.
local function read_lanes(plan, queue, want, now)
  local lines, takes, left, counts = {}, {}, want, queue.counts
  local size, part = math.min(LANES, math.ceil(want / TURN)), TURN
  for first = 0, LANES - 1, size do
    local names = commands.try('LRANGE', shard.key('turns', queue.name), first, first + size) or {} -- one more, to see whether there are more
    local has_others = names[size + 1] ~= nil
    names[size + 1] = nil
    if counts then limit_keys.read(counts, queue.name, names, now) end
    if first == 0 and not has_others then part = math.max(TURN, math.ceil(want / #names)) end
    for i, lane in ipairs(names) do
      if left <= 0 then return lines, takes, true end
      local own = counts and counts.lanes[lane]
      local free = own and limit_keys.count_free(counts, own) or want
      local line = candidates.read_line(plan, queue, math.min(free, part, left), false, lane)
      line.quota = free
      lines[first + i], takes[first + i] = line, math.min(free, part, left, #line.ids)
      left = left - takes[first + i]
    end
    if not has_others then break end
    if left <= 0 or first + size >= LANES then return lines, takes, true end
  end
  candidates.read_shares(lines, takes, left)
  return lines, takes, false
end

-- Takes at most `want` jobs of the lanes of a queue. take_from: as `claims.lua` has it.
function turns.take(plan, queue, want, bytes, now, take_from, choose_other)
  local counts, seen = queue.counts, 0
  local most = math.min(queue.quota - (queue.taken or 0), want)
  if most <= 0 then
    plan.has_more[queue.index] = plan.has_more[queue.index] or (commands.try('LLEN', shard.key('turns', queue.name)) or 0) > 0
    return bytes
  end
  local lines, takes, has_others = read_lanes(plan, queue, most, now)
  candidates.read_records(lines, takes)
  for i, line in ipairs(lines) do
    if bytes <= 0 and plan.ids[1] then break end
    local before, own = #plan.ids, counts and counts.lanes[line.lane]
    if takes[i] > 0 then bytes = take_from(plan, line, takes[i], bytes, choose_other) end
    for j = before + 1, #plan.ids do plan.lanes[plan.ids[j]] = line.lane end
    local taken = #plan.ids - before
    if own then own.planned = own.planned + taken end
    line.rests = own and limit_keys.count_free(counts, own) <= 0
    seen, queue.taken = i, (queue.taken or 0) + taken
  end
  plan.moves[#plan.moves + 1] = { queue = queue, lines = lines, seen = seen }
  plan.has_more[queue.index] = has_others or seen < #lines
  for i = 1, seen do
    local line = lines[i]
    plan.has_more[queue.index] = plan.has_more[queue.index] or (line.ids[line.seen + 1] or candidates.is_open(line)) and not line.rests
  end
  return bytes
end

-- Whether a lane has entries behind those that were seen, which are cut by now.
local function is_left(queue, line)
  return line.ids[line.seen + 1] or candidates.is_open(line) and lanes.is_left(queue, line.lane)
end

-- Moves the keys that a call looked at, once their lanes are cut: to the end, to those that rest, or away.
function turns.write_moves(plan)
  for _, moves in ipairs(plan.moves) do
    local queue, counts, cut, backs, resting, opens = moves.queue.name, moves.queue.counts, 0, {}, {}, {}
    for i = 1, moves.seen do
      local line = moves.lines[i]
      cut = cut + line.seen
      if not is_left(queue, line) then -- it goes
      elseif line.rests then
        resting[#resting + 1] = line.lane
        limit_keys.note_opening(opens, queue, line.lane, counts.lanes[line.lane])
      else
        backs[#backs + 1] = line.lane
      end
    end
    lanes.note_cut(queue, cut)
    if moves.seen > 0 then redis.call('LTRIM', shard.key('turns', queue), moves.seen, -1) end
    commands.call_many('RPUSH', shard.key('turns', queue), backs)
    commands.call_many('SADD', shard.key('resting', queue), resting)
    commands.call_many('ZADD', shard.root .. ':due', opens)
    if not backs[1] then lanes.close(queue) end
  end
end
