-- Looks at the history of a queue (`cells.lua`), some chunks of it in each call, the newest first. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: now queue kind last count
--   kind: minutes (an hour is a chunk) | hours (a day is one) | last: the newest chunk, '' for that of now
-- answer: now, the newest chunk, then for each field of each cell: number of the minute or hour since the epoch, how many
--   values follow, and these: code, count ...
--include args cells

local now = args.take_now()
local queue, kind, last, count = args.take(), args.take(), args.take(), args.take()
if last == '' then last = math.floor(now / (kind == 'hours' and 86400000 or 3600000)) end
local rows = { now, last }
for chunk = last, last - count + 1, -1 do cells.read(kind, queue, chunk, rows) end
return rows
