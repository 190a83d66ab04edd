--exports args
-- What a script is sent: one packed argument, a flat array, read from the front. Where rows are many, loops read it
-- by place: a call for each field would cost as much as the commands.
args = {}
args.values = cmsgpack.unpack(ARGV[1])
args.at = 0 -- the place of the value that was taken last

function args.take()
  local at = args.at + 1
  args.at = at
  return args.values[at]
end

-- Tests pass their own time; everybody else passes '' and gets the server's.
function args.read_now(given)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The time of a call, where it is the next value.
function args.take_now()
  return args.read_now(args.take())
end
