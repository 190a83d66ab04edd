-- Removes finished jobs past their retention, a bounded number for each queue. Sees to it that the delayed ones stand in
-- `due`, and that the book knows of other priorities, of suspects and of limit keys, should somebody have removed it. Takes
-- out emitters that are gone, and workers and queues that are. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now limit queues
-- queues: queue keep_completed age_completed keep_failed age_failed
-- answer: how many jobs were removed
--include shard args book guard floors retention completed leaving delays waking roster
--defer load_limits: limit_sweep

local now = args.take_now()
local limit, count = args.take(), args.take()
local removed = 0
redis.call('ZREM', shard.root .. ':due', '')
floors.sweep(now)
roster.sweep(now)
for _ = 1, count do
  local queue, keep_completed, age_completed, keep_failed, age_failed = args.take(), args.take(), args.take(), args.take(), args.take()
  delays.note(queue)
  if redis.call('EXISTS', shard.key('ready+', queue)) == 1 then book.set(queue, book.PLUS) end
  if redis.call('EXISTS', shard.key('suspects', queue)) == 1 then book.set(queue, book.SUSPECTS) end
  if redis.call('EXISTS', shard.key('slots', queue), shard.key('turns', queue), shard.key('resting', queue)) > 0 then
    load_limits()
    limit_sweep.keep(queue, now)
  end
  if book.changed[queue] then waking.wake_queue(queue, now) end
  removed = removed + completed.retain(queue, keep_completed, age_completed, limit, now)
  removed = removed + leaving.sweep(queue, now)
  removed = removed + retention.cut('failed', queue, keep_failed, age_failed, limit, now)
  removed = removed + retention.cut('cancelled', queue, keep_failed, age_failed, limit, now)
end
return removed
