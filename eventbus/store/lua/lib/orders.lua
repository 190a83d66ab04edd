--needs base book
--exports orders
-- What people order for a queue: `limits:<queue>`, a hash, and `limited`, the queues that have one. The flags of the book
-- say it to claims; these fields say who, why and since when.
--   paused, by, reason   since when the queue is paused, ms; who paused it, and why
-- What must hold: a queue is in `limited` exactly while it has the hash, and its flags in the book say what the hash says.
-- Both are written by one call. Crash window `book-lost`: who opens the shard again sets the flags by these hashes.
orders = {}

-- Sets the flags of the book by what is ordered, and lists the queue or forgets it.
function orders.note(queue)
  local name = key('limits', queue)
  if redis.call('HGET', name, 'paused') then book.set(queue, book.PAUSED) else book.clear(queue, book.PAUSED) end
  if redis.call('EXISTS', name) == 1 then
    redis.call('SADD', root .. ':limited', queue)
  else
    redis.call('SREM', root .. ':limited', queue)
  end
end

-- Of a queue that is removed.
function orders.forget(queue)
  redis.call('DEL', key('limits', queue))
  redis.call('SREM', root .. ':limited', queue)
end
