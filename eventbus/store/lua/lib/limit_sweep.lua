--needs shard commands book lanes limit_keys slots waking
--exports limit_sweep
-- What the sweep sees to for a queue with limits by key: the numbers of keys that have none any more go, and a key that
-- rests and may start one more has turns again. No call leaves such a key, but a clock that was set back may (its rate opens
-- when the old time comes), and so may a foreign hand, or a failover that forgot what stood in `due`.
-- It looks at samples, so that a queue with very many keys holds nobody up.
local SAMPLE, SAMPLES = 100, 20
limit_sweep = {}

-- Goes on while many of a sample have no numbers.
local function drop_idle(counts, queue, now)
  for _ = 1, SAMPLES do
    local found, gone = redis.call('HRANDFIELD', shard.key('slots', queue), SAMPLE, 'WITHVALUES'), {}
    for i = 1, #found, 2 do
      local is_key = string.sub(found[i], 1, 1) == ':'
      if is_key and limit_keys.is_empty(limit_keys.decode(counts, found[i + 1], now)) then gone[#gone + 1] = found[i] end
    end
    commands.call_many('HDEL', shard.key('slots', queue), gone)
    if #gone < SAMPLE / 4 then return end
  end
end

function limit_sweep.keep(queue, now)
  if redis.call('EXISTS', shard.key('turns', queue), shard.key('resting', queue)) > 0 then book.set(queue, book.BY_KEY) end
  local found, names = commands.try('HMGET', shard.key('slots', queue), '=', ''), commands.try('SRANDMEMBER', shard.key('resting', queue), SAMPLE) or {}
  if not found then return end
  local counts, open, opens = found[1] and slots.decode(found[1], found[2], now), {}, {}
  if counts then limit_keys.read(counts, queue, names, now) end
  for _, lane in ipairs(names) do
    local own = counts and counts.lanes[lane]
    if not own or limit_keys.count_free(counts, own) > 0 then
      open[#open + 1] = lane
    else
      limit_keys.note_opening(opens, queue, lane, own)
    end
  end
  commands.call_many('ZADD', shard.root .. ':due', opens)
  if lanes.end_rests(queue, open) then waking.wake_queue(queue, now) end
  if counts then drop_idle(counts, queue, now) end
end
