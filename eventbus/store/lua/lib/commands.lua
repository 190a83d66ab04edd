--exports commands
-- Commands of the server with many arguments, and on keys where somebody else's value may stand.
commands = {}

-- Times and orders have more than 14 digits at most, which `..` would round. What is written
-- many times is made text once: a number is formatted anew for each command.
function commands.whole(n)
  return string.format('%.0f', n)
end

-- Calls `command` on `name` with many arguments, below the limit of unpack.
function commands.call_many(command, name, list)
  for first = 1, #list, bounds.COMMAND_VALUES do
    redis.call(command, name, unpack(list, first, math.min(first + bounds.COMMAND_VALUES - 1, #list)))
  end
end

-- Reads many strings: one command for all. false where there is none, or somebody else's type.
function commands.get_all(names)
  if #names <= bounds.COMMAND_VALUES then return names[1] and redis.call('MGET', unpack(names)) or {} end
  local values = {}
  for first = 1, #names, bounds.COMMAND_VALUES do
    for i, value in ipairs(redis.call('MGET', unpack(names, first, math.min(first + bounds.COMMAND_VALUES - 1, #names)))) do
      values[first + i - 1] = value
    end
  end
  return values
end

-- Sets many strings, given as key, value pairs.
function commands.set_all(list)
  for first = 1, #list, bounds.COMMAND_VALUES do
    redis.call('MSET', unpack(list, first, math.min(first + bounds.COMMAND_VALUES - 1, #list)))
  end
end

-- What no key is to blame for: a full server, and a right that the user lacks (in the words of several servers).
local GENERAL = { 'OOM command', 'NOPERM', 'user executing the script', 'ACL failure' }

-- A call on a key where somebody else's type may stand: nil instead of an error.
-- What is wrong with the server or the user is an error all the same.
function commands.try(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  for _, text in ipairs(GENERAL) do
    if string.find(answer.err, text, 1, true) then return redis.call(...) end
  end
  return nil
end

-- `commands.call_many` on a key where somebody else's type may stand. Returns the last answer, false where it was not ours.
function commands.try_many(command, name, list)
  local answer = true
  for first = 1, #list, bounds.COMMAND_VALUES do
    answer = commands.try(command, name, unpack(list, first, math.min(first + bounds.COMMAND_VALUES - 1, #list)))
    if not answer then return false end
  end
  return answer
end

