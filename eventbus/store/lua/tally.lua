-- Adds what a worker counted of its queues to their history (`cells.lua`), at the server's time.
-- Repeat-safe: a worker numbers these calls; a number that came before, or an older one, adds nothing. It is apart from the
-- turns, because those have a number of their own and mostly nothing to add, and because a call that is given up must not
-- keep a settle from the server.
-- Counts can wait: the first write is one that a full server refuses, and the worker keeps them meanwhile.
-- flags: none
-- Crash windows: `tallies-lost` (a worker dies: what it counted in the last 5 s is in no chart), `tally-not-answered` (the
-- same call is made again, and counts once), `late-tally` (a worker hung: what it counted is in the minute in which it
-- tells of it, and in no cell of another time).
-- KEYS: the shard's book, and a key that never exists
-- head: now worker number minutes hours queues
-- queues: queue waiting oldest counts
-- counts: code more
--   minutes, hours: how long each is kept, ms | waiting: how many wait, '' if nobody looked; oldest: when the oldest of them was added, ms, or ''
--   counts: how many of the counts behind all queues belong to it
-- answer: added | known
--include shard args commands guard cells

local KEPT, LATEST = 604800000, 600000 -- a week; ten minutes, in which a call may come again
local now = args.take_now()
local worker, number, minutes, hours, queue_count = args.take(), args.take(), args.take(), args.take(), args.take()
local name, windows = shard.key('tally', worker), commands.whole(minutes) .. ' ' .. commands.whole(hours)
if number <= (tonumber(commands.try('GET', name) or '') or 0) then return 'known' end
redis.call('SET', name, number, 'PX', LATEST)
redis.call('SET', shard.root .. ':history', windows, 'PX', KEPT) -- for what ends in other calls

local entries = {}
for i = 1, queue_count do
  local entry = { queue = args.take(), gauges = {}, counts = {}, runs = {} }
  local waiting, oldest = args.take(), args.take()
  if waiting ~= '' then entry.gauges[cells.WAITING], entry.gauges[cells.OLDEST] = waiting, math.max(0, now - (tonumber(oldest) or now)) end
  entry.length, entries[i] = args.take(), entry
end
for _, entry in ipairs(entries) do
  for _ = 1, entry.length do
    local code, more = args.take(), args.take()
    local counts = code >= cells.RUNS and entry.runs or entry.counts
    counts[code] = (counts[code] or 0) + more
  end
  cells.add(entry.queue, entry, now, minutes, hours)
end
return 'added'
