--exports root CLOSED key job_root args at take read_now whole begin_writing call_many get_all set_all try try_many push
-- Shared by every script: the shard's root, key names, the packed argument, the time.
-- KEYS[1] is the shard's book, `<root>:queues`; every key starts with the root and so carries its hash tag.
-- KEYS[2] never exists. A cluster whose slot moves looks for both: while they are on two nodes it refuses the whole
-- call, so that no script ever finds one half of the shard.
root = string.sub(KEYS[1], 1, -8)
CLOSED = 'NOSHARD the book of the shard ' .. root .. ' says nothing of it'

function key(kind, name)
  return root .. ':' .. kind .. ':' .. name
end

job_root = key('job', '') -- records are what is named most

-- One packed argument: a flat array, read from the front. Where rows are many, loops read it
-- by place: a call for each field would cost as much as the commands.
args = cmsgpack.unpack(ARGV[1])
at = 0

function take()
  at = at + 1
  return args[at]
end

-- Tests pass their own time; everybody else passes '' and gets the server's.
function read_now(given)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Times and orders have more than 14 digits at most, which `..` would round. What is written
-- many times is made text once: a number is formatted anew for each command.
function whole(n)
  return string.format('%.0f', n)
end

-- The first write of calls that a full server must let through: it allows what frees memory, and all behind that.
function begin_writing()
  redis.call('HDEL', KEYS[1], '')
end

-- Calls `command` on `name` with many arguments, below the limit of unpack.
function call_many(command, name, list)
  for first = 1, #list, 1000 do
    redis.call(command, name, unpack(list, first, math.min(first + 999, #list)))
  end
end

-- Reads many strings: one command for all. false where there is none, or somebody else's type.
function get_all(names)
  if #names <= 1000 then return names[1] and redis.call('MGET', unpack(names)) or {} end
  local values = {}
  for first = 1, #names, 1000 do
    for i, value in ipairs(redis.call('MGET', unpack(names, first, math.min(first + 999, #names)))) do
      values[first + i - 1] = value
    end
  end
  return values
end

-- Sets many strings, given as key, value pairs.
function set_all(list)
  for first = 1, #list, 1000 do
    redis.call('MSET', unpack(list, first, math.min(first + 999, #list)))
  end
end

-- What no key is to blame for: a full server, and a right that the user lacks (in the words of several servers).
local GENERAL = { 'OOM command', 'NOPERM', 'user executing the script', 'ACL failure' }

-- A call on a key where somebody else's type may stand: nil instead of an error.
-- What is wrong with the server or the user is an error all the same.
function try(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  for _, text in ipairs(GENERAL) do
    if string.find(answer.err, text, 1, true) then return redis.call(...) end
  end
  return nil
end

-- `call_many` on a key where somebody else's type may stand. Returns the last answer, false where it was not ours.
function try_many(command, name, list)
  local answer = true
  for first = 1, #list, 1000 do
    answer = try(command, name, unpack(list, first, math.min(first + 999, #list)))
    if not answer then return false end
  end
  return answer
end

-- Appends one or two values to the list under `name`, made when missing.
function push(lists, name, first, second)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  local n = #list
  list[n + 1] = first
  if second ~= nil then list[n + 2] = second end
end
