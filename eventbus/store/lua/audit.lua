-- Appends to the audit: who did what, or was refused. It has the newest 10,000 actions, and apart from them the newest 1,000
-- refusals, each of the last 90 days. So nobody who is refused, however often, pushes an action out.
-- An action is noted before it is done, and its outcome replaces that entry in this one call. So what stands there without an
-- outcome was cut off, and may have been done.
-- A refusal before the action began is counted: one of the same actor, address, action, kind and queue within an hour of the
-- last one, among the newest refusals, takes the place of that one, with how many there were (`times`) and since when (`since`).
-- Repeat-safe where it replaces: what is replaced already adds nothing. Else an entry may stand twice, or a refusal count twice,
-- after a lost answer.
-- A full server lets it through, because what frees the server is audited too. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now replaced fields
--   replaced: the id of the entry that this one replaces, or '' | fields: name, value ...
-- answer: the entry's id, '' if it was replaced before
--include shard args commands guard

local MOST, MOST_REFUSALS, KEPT = 10000, 1000, 7776000000 -- 90 days, ms
local LOOKED_AT, HOUR, FIRST = 100, 3600000, 1048576 -- refusals; ms; so ids of refusals are none of actions
local SAME = { 'actor', 'address', 'action', 'kind', 'queue' }
local now = args.take_now()
local replaced, fields = args.take(), args.take()
local actions, refusals = shard.root .. ':audit', shard.root .. ':refusals'

local function read_fields(list)
  local found = {}
  for i = 1, #list, 2 do found[list[i]] = list[i + 1] end
  return found
end

local function is_same(one, other)
  for _, name in ipairs(SAME) do
    if one[name] ~= other[name] then return false end
  end
  return true
end

local function read_id(id)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(number)
end

-- Counts a refusal. Ids rise, also where the clock is set back.
local function count_refusal()
  local refusal, time = read_fields(fields), args.read_now('')
  local newest, id = redis.call('XREVRANGE', refusals, '+', '-', 'COUNT', LOOKED_AT), commands.whole(time) .. '-' .. FIRST
  local ms, number = read_id(newest[1] and newest[1][1] or '0-0')
  if ms >= time then id = commands.whole(ms) .. '-' .. commands.whole(number + 1) end
  for _, entry in ipairs(newest) do
    local same, at = read_fields(entry[2]), read_id(entry[1])
    if time - at < HOUR and is_same(same, refusal) then
      fields[#fields + 1], fields[#fields + 2] = 'times', (tonumber(same.times) or 1) + 1
      fields[#fields + 1], fields[#fields + 2] = 'since', same.since or commands.whole(at)
      redis.call('XDEL', refusals, entry[1])
      break
    end
  end
  return redis.call('XADD', refusals, 'MAXLEN', '~', MOST_REFUSALS, id, unpack(fields))
end

shard.begin_writing()
if replaced ~= '' and redis.call('XDEL', actions, replaced) == 0 then return '' end
local id, stream
if replaced == '' and read_fields(fields).outcome == 'refused' then
  id, stream = count_refusal(), refusals
else
  id, stream = redis.call('XADD', actions, 'MAXLEN', '~', MOST, '*', unpack(fields)), actions
end
redis.call('XTRIM', stream, 'MINID', '~', commands.whole(now - KEPT))
redis.call('PEXPIRE', stream, KEPT)
return id
