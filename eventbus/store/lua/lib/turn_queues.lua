--needs args book
--exports turn_queues
-- The queues of a turn.
turn_queues = {}

-- Returns them in their order, by their names, and whether any has a limit; nil where the shard was not opened.
function turn_queues.read(count)
  local queues, names, by_name, is_limited = {}, {}, {}, false
  for i = 1, count do
    local queue = { name = args.take(), quota = args.take(), index = i }
    queue.keep_completed, queue.age_completed = args.take(), args.take()
    queue.keep_failed, queue.age_failed, queue.key_ttl = args.take(), args.take(), args.take()
    queues[i], names[i], by_name[queue.name] = queue, queue.name, queue
  end
  local flags = book.read(names)
  if not flags then return nil end
  for i, queue in ipairs(queues) do
    queue.flags = flags[i]
    if flags[i] % 2 == book.PAUSED then queue.quota = 0 end -- as a queue that is not asked
    is_limited = is_limited or flags[i] % 4 >= book.LIMITED
  end
  return queues, by_name, is_limited
end

-- Calls `retention.cut` with each queue of which jobs ended. Where few ended, one turn of eight asks; the time decides which, for
-- calls that settle may all have even numbers. The second argument: whether it is the eighth.
function turn_queues.retain(queues, now, retain)
  for i, queue in ipairs(queues) do
    local most = math.max(queue.completed or 0, queue.failed or 0, queue.cancelled or 0)
    if most >= 8 or most > 0 and (now + i) % 8 == 0 then retain(queue, (now + i) % 8 == 0) end
  end
end
