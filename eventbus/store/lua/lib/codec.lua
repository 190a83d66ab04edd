--needs shard flag
--exports codec
-- A record as a table: what the short ways of `plain.lua` do not know.
--   fields: state, flags, created, attempts, queue, reply, root; body, or size of a body of its own;
--     ended, lasted, worker, result of one that has ended; claimed, token of one that names its holder
--   limit: its limit key | is_later: it has what a later release knows, so it is not run
--   is_root: a brief root (`rooting.lua`), of which `tree` and `on` stand nowhere else
codec = {}
local NAMES = {
  [0] = 'waiting', 'completed', 'failed', 'cancelled', 'delayed', 'parked', 'waiting-children',
  [8] = 'waiting', [9] = 'waiting', [10] = 'completed',
}
local CODES = {}
for code = 0, 6 do CODES[NAMES[code]] = code end
local LONGEST = 4294967295

-- The fields that stand in the record; all others stand in `more:<id>`.
codec.CORE = {}
for name in string.gmatch('state flags created attempts queue reply root limit body size ended lasted worker result claimed token is_later is_root', '%S+') do
  codec.CORE[name] = true
end

local function decode_tail(record, text, code)
  local at = 10
  if code == 8 then
    record.claimed, record.token, at = struct.unpack('>I6Bc0', text, at)
  elseif code >= 1 and code <= 3 or code == 10 then
    record.ended, record.lasted, record.worker, record.result, at = struct.unpack('>I6I4Bc0I2c0', text, at)
  end
  record.queue, record.reply, at = struct.unpack('>Bc0Bc0', text, at)
  if record.reply == '' then record.reply = nil end
  if bit.band(record.flags, FLAG.MEMBER) ~= 0 then
    local top
    top, at = struct.unpack('>I2c0', text, at)
    if top == '' then error('no root') end
    record.root = top
  end
  if bit.band(record.flags, FLAG.LIMIT) ~= 0 then
    record.is_later = (string.byte(text, at) or FLAG.LIMIT) >= FLAG.LIMIT
    if not record.is_later then record.limit, at = struct.unpack('>Bc0', text, at) end
  end
  if record.is_later or bit.band(record.flags, FLAG.BODY) == 0 then
    record.body = string.sub(text, at)
  else
    record.size, at = struct.unpack('>I4', text, at)
    if at ~= #text + 1 then error('too long') end
  end
end

-- Returns the record; or nil, what is wrong with it, and what could be read.
function codec.decode(text)
  local first, flags = string.byte(text, 1, 2)
  local code = (first or 0) % 16
  if first and first - code == 48 then return nil, 'of a format to come', { state = NAMES[code] } end
  if not first or first - code ~= 32 or not NAMES[code] then return nil, 'no format and state that are known', {} end
  if #text < 10 then return nil, 'cut off', {} end
  local record = { state = NAMES[code], flags = flags }
  record.created, record.attempts = struct.unpack('>I6B', text, 3)
  if code >= 9 then record.is_root, record.tree, record.on = true, '1', 'wake' end
  if not pcall(decode_tail, record, text, code) then return nil, 'its parts do not fit together', record end
  if record.queue == '' then return nil, 'no queue', record end
  return record
end

-- What must stand beside the record of a brief root that can be one no more, as name, value pairs.
function codec.make_full(record)
  local is_brief = record.state == 'waiting' or record.state == 'completed'
  if not record.is_root or is_brief then return {} end
  local more = { 'tree', 1, 'on', 'wake' }
  record.is_root = nil
  return more
end

local function pack_text(text)
  return string.char(#text) .. text
end

function codec.encode(record)
  local code, flags = CODES[record.state], bit.band(record.flags or 0, 255 - FLAG.MEMBER - FLAG.BODY - FLAG.LIMIT)
  if record.is_root then code = code + 9 elseif record.token and code == 0 then code = 8 end
  if record.root then flags = flags + FLAG.MEMBER end
  if record.size then flags = flags + FLAG.BODY end
  if record.limit then flags = flags + FLAG.LIMIT end
  if record.is_later then flags = record.flags end -- the body is all that stands behind, with what is not known
  local parts = { struct.pack('>BBI6B', 32 + code, flags, record.created, math.min(record.attempts or 0, 255)) }
  if code == 8 then
    parts[2] = struct.pack('>I6', record.claimed) .. pack_text(record.token)
  elseif code >= 1 and code <= 3 or code == 10 then
    local lasted = math.max(0, math.min(record.lasted or 0, LONGEST))
    parts[2] = struct.pack('>I6I4', record.ended, lasted) .. pack_text(record.worker or '')
      .. struct.pack('>I2', #record.result) .. record.result
  end
  parts[#parts + 1] = pack_text(record.queue) .. pack_text(record.reply or '')
  if record.root then parts[#parts + 1] = struct.pack('>I2', #record.root) .. record.root end
  if record.limit then parts[#parts + 1] = pack_text(record.limit) end
  parts[#parts + 1] = record.size and struct.pack('>I4', record.size) or record.body or ''
  return table.concat(parts)
end

-- No attempt has ended yet.
function codec.reset_attempts(id)
  redis.call('SETRANGE', shard.job_root .. id, 8, '\0')
end

-- What waited for others, or for a time, waits for its turn.
function codec.set_waiting(id)
  redis.call('SETRANGE', shard.job_root .. id, 0, ' ')
end

-- Parks a record of a format to come.
function codec.set_parked(id)
  local first = string.byte(redis.call('GETRANGE', shard.job_root .. id, 0, 0))
  redis.call('SETRANGE', shard.job_root .. id, 0, string.char(first - first % 16 + 5))
end
