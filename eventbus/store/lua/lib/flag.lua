--needs shard commands
--exports FLAG
-- The flags of a record (`plain.lua` says what each means).
FLAG = { MORE = 1, BODY = 2, RESULT = 4, JOURNAL = 8, STOP = 16, MEMBER = 32, LIMIT = 64, SIDE = 128 }

-- The keys that a job may have, its record first, and the flag that says that there is one.
FLAG.KEYS = { 'job', 'more', 'body', 'result', 'progress', 'log', 'lines', 'waiters', 'checkpoints', 'journal', 'inbox', 'live' }
FLAG.OF = { more = FLAG.MORE, body = FLAG.BODY, result = FLAG.RESULT, progress = FLAG.SIDE, log = FLAG.SIDE, lines = FLAG.SIDE, waiters = FLAG.SIDE, checkpoints = FLAG.SIDE, journal = FLAG.JOURNAL, inbox = FLAG.SIDE, live = FLAG.SIDE }

-- Sets flags of a record. Returns whether there is one.
function FLAG.add(id, flag)
  local first, flags = string.byte(commands.try('GETRANGE', shard.job_root .. id, 0, 1) or '', 1, 2)
  if not flags or first < 32 or first > 47 then return false end
  local all = bit.bor(flags, flag)
  if all ~= flags then redis.call('SETRANGE', shard.job_root .. id, 1, string.char(all)) end
  return true
end
