import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's own client writes many ledgers and dies: those that were to stay open have no writer.
 *
 * <p>URI v2|v3 PASSWORD E/Qw/Qa/ENTRIES/DIGEST/close|open…, a ledger each; says "LEDGER id" for each.
 */
public final class ManyLedgers {
    private ManyLedgers() {}

    public static void main(String[] words) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(words[0]);
        conf.setUseV2WireProtocol(words[1].equals("v2"));
        BookKeeper client = BookKeeper.newBuilder(conf).build();
        for (int at = 3; at < words.length; at++) {
            String[] kind = words[at].split("/");
            WriteHandle handle = client.newCreateLedgerOp()
                    .withEnsembleSize(Integer.parseInt(kind[0]))
                    .withWriteQuorumSize(Integer.parseInt(kind[1]))
                    .withAckQuorumSize(Integer.parseInt(kind[2]))
                    .withDigestType(DigestType.valueOf(kind[4]))
                    .withPassword(words[2].getBytes(StandardCharsets.UTF_8))
                    .execute().get();
            for (int entry = 0; entry < Integer.parseInt(kind[3]); entry++) {
                handle.append(("entry " + entry + " ").repeat(10).getBytes(StandardCharsets.UTF_8));
            }
            if (kind[5].equals("close")) {
                handle.close();
            }
            System.out.println("LEDGER " + handle.getId());
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
