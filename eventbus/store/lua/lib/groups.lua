-- Groups of queues. Few queues have any, so the shard keeps a list of those that do: a call with
-- many queues asks it once.
local function add_group(queue, group)
  redis.call('SADD', root .. ':grouped', queue)
  return redis.call('SADD', key('groups', queue), group)
end
