-- Counts the jobs that workers hold, by queue: of some workers in each call, in the order of their ids. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: after limit
--   after: the last worker that was looked at, '' at first | limit: of jobs; the jobs of one worker are not parted
-- answer: the last worker that was looked at ('' at the end), then queue, count
--include shard args commands codec hold holds

local after, limit = args.take(), args.take()
local workers = redis.call('ZRANGE', shard.root .. ':workers', 0, -1)
table.sort(workers)
local counts, seen, last = {}, 0, ''
for _, worker in ipairs(workers) do
  if worker > after then
    if seen >= limit then break end
    last = worker
    local names = {}
    for i, each in ipairs(holds.list(worker)) do names[i] = shard.job_root .. each.id end
    seen = seen + #names
    for _, text in ipairs(commands.get_all(names)) do
      local record = text and codec.decode(text)
      if record then counts[record.queue] = (counts[record.queue] or 0) + 1 end
    end
  end
end
local answer = { last == workers[#workers] and '' or last }
for queue, count in pairs(counts) do answer[#answer + 1], answer[#answer + 2] = queue, count end
return answer
