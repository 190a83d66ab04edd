-- Shared by every script: the shard's root, key names, the packed argument, the time.
-- KEYS[1] is the shard's root; every key starts with it and so carries its hash tag.
local root = KEYS[1]

local function key(kind, name)
  return root .. ':' .. kind .. ':' .. name
end

-- One packed argument: a flat array, read from the front.
local args = cmsgpack.unpack(ARGV[1])
local at = 0

local function take()
  at = at + 1
  return args[at]
end

-- Tests pass their own time; everybody else passes '' and gets the server's.
local function read_now(given)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Times and orders have more than 14 digits at most, which `..` would round.
local function whole(n)
  return string.format('%.0f', n)
end

-- Calls `command` on `name` with many arguments, below the limit of unpack.
local function call_many(command, name, list)
  for first = 1, #list, 1000 do
    redis.call(command, name, unpack(list, first, math.min(first + 999, #list)))
  end
end

-- A call on a key where somebody else's type may stand: nil instead of an error.
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then return nil end
  return answer
end

-- Appends to the list under `name`, made when missing.
local function push(lists, name, ...)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  for i = 1, select('#', ...) do
    list[#list + 1] = (select(i, ...))
  end
end
