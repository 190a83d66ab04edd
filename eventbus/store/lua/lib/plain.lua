--needs shard commands flag
--exports plain
-- The record of a job is one string, so that most jobs cost the server one key and one short command.
-- This file and `codec.lua` alone know where its bytes are. Numbers have their highest byte first.
--
--   offset  0  1 byte   0x20 + state; 0x30 + state is a format to come: who would run such a job parks it unread, and
--                       to all else its record is damaged
--           1  1 byte   flags
--           2  6 bytes  when it was added, ms
--           8  1 byte   attempts that ended; 255: the field `attempts` of `more:<id>` has their number
--           9           ended: 6 bytes, when, ms; 4 bytes, how long it ran, ms; worker (1 byte length); result (2 bytes)
--                       named: 6 bytes, when it was claimed, ms; token of who holds it (1 byte length)
--        then           queue (1 byte length); emitter (1 byte length; empty: nobody awaits it);
--                       with MEMBER the root of its tree (2 bytes length); with LIMIT its limit key (1 byte length; 64
--                       and more is for later releases: a job with that is not run, but parked);
--                       the body to the end, or with BODY 4 bytes, the length of `body:<id>`
--   states  0 waiting, also while a worker holds it; 1 completed; 2 failed; 3 cancelled; 4 delayed; 5 parked;
--           6 waits for others; 8 is 0 of a record that names its holder; 9 and 10 are 0 and 1 of a brief root (`rooting.lua`)
--   flags   1 MORE: `more:<id>` has what is unusual; 2 BODY; 4 RESULT: `result:<id>` has its outcome, or what the
--           outcome will be; 8 JOURNAL: it has a journal; 16 STOP: of a root, its tree stops; 32 MEMBER; 64 LIMIT; 128 SIDE: it
--           may have progress, a log, waiters, checkpoints, an inbox or live texts
--
-- A plain record is of state 0 or 9, and has no flags but BODY, JOURNAL, LIMIT and SIDE: it is read and changed by place.
plain = {}
plain.SMALL = 256 -- longer bodies and results have keys of their own: a settle would copy them
local IS_PLAIN = {
  [0] = true, [2] = true, [8] = true, [10] = true, [64] = true, [66] = true, [72] = true, [74] = true,
  [128] = true, [130] = true, [136] = true, [138] = true, [192] = true, [194] = true, [200] = true, [202] = true,
}

-- The flags of an open job, and how many attempts it has ended as far as its record says; nil if there is none.
function plain.read_head(id)
  local first, flags, _, _, _, _, _, _, attempts = string.byte(commands.try('GETRANGE', shard.job_root .. id, 0, 8) or '', 1, 9)
  if not attempts or first ~= 32 and first ~= 40 and first ~= 41 then return nil end
  return flags, attempts
end

-- Whether a later release wrote the record, in a format to come.
function plain.is_later(id)
  local first = string.byte(commands.try('GETRANGE', shard.job_root .. id, 0, 0) or '')
  return first and first >= 48 and first < 64
end

-- What stands in the record of a plain job before its body, or before the length of a body of its own.
function plain.open(queue, emitter, now, has_body, is_root)
  return struct.pack('>BBI6BBc0Bc0', is_root and 41 or 32, has_body and FLAG.BODY or 0, now, 0, #queue, queue, #emitter, emitter)
end

-- The queue, the emitter, the place of the body, and the flags of a plain record; nil of any other. And whether it is a root.
function plain.read(text)
  local first, flags = string.byte(text, 1, 2)
  local length = string.byte(text, 10)
  if first ~= 32 and first ~= 41 or not IS_PLAIN[flags] or not length then return nil end
  local next_length = string.byte(text, 11 + length)
  local at = next_length and 12 + length + next_length
  if not at or #text < at then return nil end
  local emitter = string.sub(text, 12 + length, at - 1)
  if flags % 128 >= FLAG.LIMIT then
    local key_length = string.byte(text, at)
    if key_length >= FLAG.LIMIT or #text < at + 1 + key_length then return nil end
    at = at + 1 + key_length
  end
  return string.sub(text, 11, 10 + length), emitter, at, flags, first == 41
end

-- When a job was added, and how many attempts it has ended.
function plain.count(text)
  return struct.unpack('>I6B', text, 3)
end

-- Whether a record is one of a job that has ended.
function plain.has_ended(text)
  local first = string.byte(text)
  return first and (first > 32 and first < 36 or first == 42)
end

-- The queue of any record; an error where it is damaged.
function plain.find_queue(text)
  local at = plain.has_ended(text) and select(5, struct.unpack('>I6I4Bc0I2c0', text, 10)) or 10
  return (struct.unpack('>Bc0', text, at))
end

function plain.was_completed_by(text, worker)
  local first = string.byte(text)
  return (first == 33 or first == 42) and string.sub(text, 20, 20 + #worker) == string.char(#worker) .. worker
end

-- Whether a job that completed then may be forgotten: its record still says so, or cannot be read at all.
function plain.is_over(text, ended)
  local first = string.byte(text)
  if first ~= 33 and first ~= 42 then return not first or first < 32 or first > 47 end
  return #text < 15 or struct.unpack('>I6', text, 10) == ended
end

-- The length of the body that has a key of its own, or nil.
function plain.size(text, at)
  return #text == at + 3 and struct.unpack('>I4', text, at) or nil
end

-- A plain record, completed. queue, at, flags: as `plain.read` tells of it; ended: 10 bytes and the worker, as above. Its
-- emitter is told now, and forgotten.
function plain.close(text, queue, at, flags, ended, result)
  local is_small = #result <= plain.SMALL
  local inline = is_small and struct.pack('>I2', #result) .. result or '\0\0'
  if flags % 128 >= FLAG.LIMIT then at = 12 + #queue + string.byte(text, 11 + #queue) end -- the limit key stays
  return string.char(string.byte(text) + 1, is_small and flags or flags + FLAG.RESULT) .. string.sub(text, 3, 9) .. ended .. inline
    .. string.sub(text, 10, 10 + #queue) .. '\0' .. string.sub(text, at)
end

