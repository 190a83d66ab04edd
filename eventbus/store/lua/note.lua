-- Records progress under the lease, and log lines that a job keeps: the newest 100, 64 KiB together.
-- Repeat-safe: lines are numbered within a claim, and those that are there already are not added again.
-- The first write is one that a full server allows: a handler that tells how far it is must not fail for it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now jobs lines
-- jobs: id token progress
-- lines: id token number age text
--   number: counts the lines of one claim of the job, from 1; age: how long ago it was said, ms
-- answer: ids whose lease is not held by that token any more
--include shard args commands tables changes guard flag hold holds

local MOST, BYTES = bounds.KEPT_LINES, 65536
local now = args.take_now()
local count, lines = args.take(), args.take()
local notes, said, lost, is_lost = {}, {}, {}, {}

-- Whether the token holds the job; told once for each job.
local function is_held(id, token)
  if is_lost[id] then return false end
  if holds.read(id, token) then return true end
  is_lost[id], lost[#lost + 1] = true, id
  return false
end

for _ = 1, count do
  local id, token, progress = args.take(), args.take(), args.take()
  if is_held(id, token) then notes[#notes + 1] = { id, progress, token } end
end
for _ = 1, lines do
  local id, token, number, age, text = args.take(), args.take(), args.take(), args.take(), args.take()
  if said[id] or is_held(id, token) then
    tables.push(said, id, { token = token, number = number, entry = commands.whole(now - age) .. ' ' .. token .. ' ' .. commands.whole(number) .. ' ' .. text })
  end
end

local function add_lines(id, list)
  local name, new = shard.key('lines', id), {}
  local token, last = string.match(commands.try('LINDEX', name, -1) or '', '^%d+ (%S+) (%d+) ')
  for _, line in ipairs(list) do
    if token ~= line.token or line.number > tonumber(last) then new[#new + 1] = line.entry end
  end
  if not new[1] or not commands.try_many('RPUSH', name, new) then return end
  local all, bytes = redis.call('LRANGE', name, 0, -1), 0
  local first = #all + 1
  while first > 1 and #all - first < MOST - 1 and bytes + #all[first - 1] <= BYTES do
    first, bytes = first - 1, bytes + #all[first - 1]
  end
  redis.call('LTRIM', name, first - 1, -1)
  FLAG.add(id, FLAG.SIDE)
end

shard.begin_writing()
for _, each in ipairs(notes) do
  local is_same = changes.is_on() and commands.try('GET', shard.key('progress', each[1])) == each[2] -- a repeat tells nothing
  redis.call('SET', shard.key('progress', each[1]), each[2])
  FLAG.add(each[1], FLAG.SIDE)
  if changes.is_on() and not is_same then
    --include fields
    changes.note('progress', (fields.peek(each[1]) or {}).queue or '', each[1], 'active', { progress = each[2], worker = Hold.worker_of(each[3]) })
  end
end
for id, list in pairs(said) do add_lines(id, list) end
return lost
