-- Looks at schedules: one, or a page of all, the first due first; those that are paused or at their end come last. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: now id first limit bytes
--   id: of one, or '' for a page | first: the rank of the first one of the page, from 0
-- answer: now, how many there are, schedules:
--   id due gen slot last lastjob fired skipped missed held paused owner version digest plan
--   due: '' if it is not | paused: the reason, '' if it is not paused
--include shard args commands

local now = args.take_now()
local id, first, limit, bytes = args.take(), args.take(), args.take(), args.take()
local FIELDS = { 'gen', 'slot', 'last', 'lastjob', 'fired', 'skipped', 'missed', 'held', 'paused', 'owner', 'version', 'digest' }
local page = id ~= '' and { id, commands.try('ZSCORE', shard.root .. ':schedules', id) or 'inf' }
  or commands.try('ZRANGE', shard.root .. ':schedules', first, first + limit - 1, 'WITHSCORES') or {}
local rows = {}
for i = 1, #page, 2 do
  if bytes <= 0 then break end -- before it reads the next plan
  -- Somebody else's value may stand there: then the schedule has no plan, and whoever looks sees that it cannot be read.
  local known = commands.try('HMGET', shard.key('schedule', page[i]), unpack(FIELDS)) or { '-' }
  local plan = commands.try('GET', shard.key('plan', page[i]))
  if known[1] then
    bytes = bytes - #(plan or '')
    rows[#rows + 1] = page[i]
    rows[#rows + 1] = tonumber(page[i + 1]) < math.huge and commands.whole(page[i + 1]) or ''
    for j = 1, #FIELDS do rows[#rows + 1] = known[j] or '' end
    rows[#rows + 1] = plan or ''
  end
end
return { now, commands.try('ZCARD', shard.root .. ':schedules') or 0, rows }
