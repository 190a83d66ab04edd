--needs base candidates lanes limit_keys windows
--exports turns
-- Turns: a claim takes from lanes in rotation, at least TURN jobs of each key, as far as the limit of the queue for each
-- key allows. So a key with a long lane delays another by a turn, and a key that rests is not looked at.
-- What must hold: a key rests only while so many of its jobs run, or until the time of `lane:<key>/<queue>` in `due`; so
-- who gives a slot of it back, or does that chore, gives it turns again.
local TURN = 4
local LANES = 64 -- that one call looks at

turns = {}

-- Takes at most `want` jobs of the lanes of a queue. take_from: as `claim.lua` has it.
function turns.take(plan, queue, want, bytes, now, take_from, choose_other)
  local counts, left = queue.counts, math.min(queue.quota - (queue.taken or 0), want)
  local names = try('LRANGE', key('turns', queue.name), 0, LANES - 1) or {}
  local moves = { queue = queue, seen = 0, lines = {} }
  if counts then limit_keys.read(counts, queue.name, names, now) end
  local part = math.max(TURN, math.ceil(left / math.max(1, #names)))
  for _, lane in ipairs(names) do
    if left <= 0 or bytes <= 0 and plan.ids[1] then break end
    local own = counts and counts.lanes[lane]
    local free = math.min(left, part, own and limit_keys.count_free(counts, own) or left)
    local line = candidates.read_line(plan, queue, free, false, lane)
    local before = #plan.ids
    if free > 0 then
      candidates.read_records({ line }, { free })
      bytes = take_from(plan, line, free, bytes, choose_other)
    end
    local taken = #plan.ids - before
    for i = before + 1, #plan.ids do plan.lanes[plan.ids[i]] = lane end
    if own then own.planned = own.planned + taken end
    moves.seen, moves.lines[#moves.lines + 1], left = moves.seen + 1, line, left - taken
    line.rests = own and limit_keys.count_free(counts, own) <= 0
    queue.taken = (queue.taken or 0) + taken
  end
  plan.moves[#plan.moves + 1] = moves
  plan.has_more[queue.index] = moves.seen < #names or #names == LANES
  for _, line in ipairs(moves.lines) do
    local is_left = line.ids[line.seen + 1] or candidates.is_open(line)
    plan.has_more[queue.index] = plan.has_more[queue.index] or is_left and not line.rests
  end
  return bytes
end

-- Moves the keys that a call looked at, once their lanes are cut: to the end, to those that rest, or away.
function turns.write_moves(plan)
  for _, moves in ipairs(plan.moves) do
    local queue, backs, counts, cut = moves.queue.name, {}, moves.queue.counts, 0
    for _, line in ipairs(moves.lines) do
      cut = cut + line.seen
      local is_left = line.ids[line.seen + 1] or lanes.is_left(queue, line.lane)
      if is_left and line.rests then
        redis.call('SADD', key('resting', queue), line.lane)
        local opens = windows.find_opening(counts.lanes[line.lane].windows)
        if opens then redis.call('ZADD', root .. ':due', opens, 'lane:' .. line.lane .. '/' .. queue) end
      elseif is_left then
        backs[#backs + 1] = line.lane
      end
    end
    lanes.note_cut(queue, cut)
    if moves.seen > 0 then redis.call('LTRIM', key('turns', queue), moves.seen, -1) end
    call_many('RPUSH', key('turns', queue), backs)
    lanes.close(queue)
  end
end
