--needs shard commands changes codec flag hold plain
--exports fields
-- The fields of a job by their names, wherever they stand: in its record, or in the hash `more:<id>`.
-- Each change reads the record anew, so that none undoes another one of the same call.
fields = {}

-- What stands in the record itself: as `decode` returns it; nil also where there is none.
function fields.peek(id)
  local text = commands.try('GET', shard.job_root .. id)
  if not text then return nil, text == nil and 'not a string' or 'missing', {} end
  return codec.decode(text)
end

-- All fields; `text` is the record if it was read already.
-- Returns the record; or nil, what is wrong with it, its queue if that is known, and what could be read.
function fields.fetch(id, text)
  local record, why, known
  if text then record, why, known = codec.decode(text) else record, why, known = fields.peek(id) end
  known = record or known
  if not record or bit.band(record.flags, FLAG.MORE) ~= 0 then
    local more = commands.try('HGETALL', shard.key('more', id))
    if not more then record, why = nil, why or 'its further fields are not a hash' end
    if record and #more == 0 then record, why = nil, 'its further fields are gone' end
    for i = 1, #(more or {}), 2 do
      if not codec.CORE[more[i]] or more[i] == 'attempts' then known[more[i]] = more[i + 1] end
    end
  end
  return record, why, known.queue, known
end

-- The result or the error of a job, or what it will be; '' if there is none.
function fields.text_of(id, record)
  if record and record.result and record.result ~= '' then return record.result end
  return commands.try('GET', shard.key('result', id)) or ''
end

-- When it was claimed last, ms, or nil where that is not recorded.
function fields.claimed_of(record)
  local was_run = record.ended and record.worker ~= ''
  return was_run and record.ended - record.lasted or record.claimed or tonumber(record.began)
end

-- Keeps a body where it belongs by its length.
function fields.keep_body(record, id, body)
  if #body > plain.SMALL then
    redis.call('SET', shard.key('body', id), body)
    record.body, record.size = nil, #body
  else
    record.body, record.size = body, nil
  end
end

-- Writes fields beside a record, which says so from then on.
local function write_more(id, record, more)
  if #more == 0 then return end
  if not commands.try('HSET', shard.key('more', id), unpack(more)) then -- somebody else's value
    redis.call('DEL', shard.key('more', id))
    redis.call('HSET', shard.key('more', id), unpack(more))
  end
  record.flags = bit.bor(record.flags, FLAG.MORE)
end

-- Changes fields, given as name, value pairs; false takes a field of the record out. What cannot be read stays as it is.
function fields.change(id, ...)
  local record = fields.peek(id)
  if not record then return end
  local given, more = { ... }, {}
  for i = 1, #given, 2 do
    local field, value = given[i], given[i + 1]
    if field == 'attempts' then
      record.attempts = tonumber(value) or record.attempts
      if record.attempts >= 255 then more[#more + 1], more[#more + 2] = field, value end
    elseif codec.CORE[field] then
      record[field] = value
    else
      more[#more + 1], more[#more + 2] = field, value
      if field == 'stop' then record.flags = bit.bor(record.flags, FLAG.STOP) end
      if field == 'tree' then record.is_root = nil end
    end
  end
  write_more(id, record, codec.make_full(record))
  write_more(id, record, more)
  redis.call('SET', shard.job_root .. id, codec.encode(record))
end

-- Takes fields away that stand in `more`; returns how many there were. A record without further fields says so.
function fields.clear(id, ...)
  local count = commands.try('HDEL', shard.key('more', id), ...) or 0
  local record = count > 0 and redis.call('EXISTS', shard.key('more', id)) == 0 and fields.peek(id)
  if record then
    record.flags = bit.band(record.flags, 255 - FLAG.MORE)
    redis.call('SET', shard.job_root .. id, codec.encode(record))
  end
  return count
end

-- Keeps what the outcome of an open job will be.
function fields.note_result(id, text)
  redis.call('SET', shard.key('result', id), text)
  FLAG.add(id, FLAG.RESULT)
end

-- Writes the end of a job. `text`: its result or its error; `hold`: of who ran it, if somebody did.
function fields.close(id, state, text, now, hold)
  local record = fields.peek(id)
  if not record then return end
  record.state, record.ended = state, now
  if hold then record.lasted, record.worker = now - Hold.time(hold), Hold.worker_of(Hold.token(hold)) end
  if changes.is_on() then changes.note(state, record.queue, id, state, { worker = record.worker, text = state ~= 'completed' and text }) end
  local had_result = bit.band(record.flags, FLAG.RESULT) ~= 0
  record.flags, record.result = bit.band(record.flags, 255 - FLAG.RESULT), text
  if #text > plain.SMALL then
    redis.call('SET', shard.key('result', id), text)
    record.flags, record.result = record.flags + FLAG.RESULT, ''
  elseif had_result then
    redis.call('DEL', shard.key('result', id))
  end
  write_more(id, record, codec.make_full(record))
  redis.call('SET', shard.job_root .. id, codec.encode(record))
end
