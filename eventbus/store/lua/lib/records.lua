--needs shard commands codec endings fields flag hold holds outcomes
--exports records
-- Reading job records that may be missing, foreign or damaged, without raising.
-- A whole number as we write them, or none; `tonumber` also takes nan, inf, 0x10 and 1e99.
records = {}
local function is_number(value)
  return not value or #value <= 17 and string.find(value, '^%-?%d+$')
end

local COUNTS = { 'attempts', 'stalls', 'spared', 'alone', 'crowd', 'fatal', 'due', 'priority', 'entry' }

-- What a claim, a promotion or a rescue must know.
-- Returns the record; or nil, what is wrong with it, and its queue if that can be read.
-- `text`: what stands there, if it was read already.
function records.read(id, text)
  local record, why, queue = fields.fetch(id, text)
  if not record then return nil, why, queue end
  for _, field in ipairs(COUNTS) do
    local value = record[field]
    if type(value) == 'string' and not is_number(value) then return nil, 'bad ' .. field, queue end
  end
  return record
end

-- What settling must know, or nil: the lease, and who is to be told. A job whose record names its holder is `active`
-- while that one holds it, and a brief root if it is found in a hold; of others only a search tells (`holds.find`).
function records.read_lease(id)
  local record = fields.fetch(id)
  if not record then return nil end
  local hold = record.is_root and record.state == 'waiting' and holds.find(id)
  if hold then record.token, record.claimed = Hold.token(hold), Hold.time(hold) end
  if record.state == 'waiting' and record.token and (hold or holds.read(id, record.token)) then record.state = 'active' end
  return record
end

-- Appends the end of an attempt or of a lease to the job's log.
function records.note_error(id, text)
  if text == '' then return end
  if not commands.try('RPUSH', shard.key('log', id), text) then return end
  redis.call('LTRIM', shard.key('log', id), -bounds.LOG_ERRORS, -1)
  FLAG.add(id, FLAG.SIDE)
end

-- The text of an error, with when its attempt was due (0: at once), began and ended, who ran it, and what it came to: failed, stalled or
-- put-off. Releases that do not know these fields pass over them. Text that is no JSON object stays as it is.
function records.add_times(text, due, began, ended, worker, kind)
  if not string.find(text, '^{".*}$') then return text end
  local times = string.format(',"due":%.0f,"began":%.0f,"ended":%.0f', tonumber(due) or 0, began, ended)
  return string.sub(text, 1, -2) .. times .. ',"worker":' .. cjson.encode(worker) .. ',"kind":"' .. kind .. '"}'
end

-- Whether a job found where its state does not belong also stands where it does: then the
-- other entry is a stray. If not, the job is lost unless somebody is told.
function records.is_placed(id, record)
  -- In long lists nobody can find an entry.
  if record.state == 'completed' or record.state == 'waiting' then return true end
  return commands.try('ZSCORE', shard.key(record.state, record.queue), id) or record.ended and commands.try('ZSCORE', shard.key('leaving', record.queue), id)
end

-- What was recorded is kept for a while.
local function set_raw_apart(id, name)
  for from, kept in pairs({ [name] = shard.key('raw', id), [shard.key('more', id)] = shard.key('rawmore', id) }) do
    if redis.call('EXISTS', from) == 1 then
      redis.call('RENAME', from, kept)
      redis.call('PEXPIRE', kept, outcomes.KEPT)
    end
  end
end

-- Sets a damaged job apart as failed: what stood there is kept under `raw`. Where no queue
-- is known it is listed under `unknown`, which nobody sweeps; so that goes by itself.
function records.quarantine(id, queue, why, now)
  local name = shard.job_root .. id
  local record = { queue = queue or 'unknown' }
  local _, _, _, known = fields.fetch(id)
  for _, each in ipairs({ 'reply', 'joined', 'key', 'root', 'up', 'tree', 'wakes' }) do record[each] = known[each] end
  set_raw_apart(id, name)
  local dependent = not record.root and commands.try('LINDEX', shard.key('feeds', id), 0)
  if dependent then -- who needs it knows which tree it was part of
    local other = fields.fetch(dependent) or {}
    record.root = other.tree and dependent or other.root
  end
  -- It goes when its tree does, with all that may stand beside it; and the members of a root do not start.
  local size = redis.call('EXISTS', shard.key('body', id)) == 1 and 0 or nil
  local flags = FLAG.RESULT + FLAG.SIDE + (redis.call('EXISTS', shard.key('journal', id)) == 1 and FLAG.JOURNAL or 0)
  local head = { state = 'waiting', flags = flags, created = now, queue = record.queue, root = record.root, size = size }
  redis.call('SET', name, codec.encode(head))
  fields.change(id, 'why', string.sub(why, 1, bounds.WHY_BYTES))
  outcomes.apart[#outcomes.apart + 1] = id
  if record.tree then fields.change(id, 'tree', 1, 'stop', 'failed') end
  local text = cjson.encode({
    type = 'StoreCorrupt',
    -- What it quotes may be no UTF-8, and would make its whole reply unreadable.
    message = 'the record of job ' .. id .. ' cannot be read: ' .. string.gsub(why, '[^\32-\126]', '?'),
    attempts = 0,
  })
  endings.write(id, record, 'failed', text, now, 0)
  if queue or record.root then return end
  redis.call('ZADD', shard.key('failed', 'unknown'), now, id)
  redis.call('PEXPIRE', shard.key('failed', 'unknown'), outcomes.KEPT)
  outcomes.expire_record(id)
  for _, each in ipairs(commands.try('SMEMBERS', shard.root .. ':rooted') or {}) do commands.try('ZREM', shard.key('roots', each), id) end
  if redis.call('EXISTS', shard.key('members', id)) == 1 then redis.call('ZADD', shard.root .. ':due', now + outcomes.KEPT, 'forget:' .. id) end
end
